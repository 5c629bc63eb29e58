/* The plugin at REAL_PLUGIN, with a fault that the variable LOCKSTEP_TEST_FAULT names. When a client is gone, it prints how
   many buffers have not been destroyed. */

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "pjrt_c_api.h"

static const PJRT_Api* real;
static PJRT_Api api;
static long live_buffers;

/* An error object: what the plugin says of arguments without a size. */
static PJRT_Error* make_error(void) {
  PJRT_Client_PlatformName_Args args;
  memset(&args, 0, sizeof(args));
  return real->PJRT_Client_PlatformName(&args);
}

static PJRT_Error* on_ready(PJRT_Event_OnReady_Args* args) {
  (void)args;
  return make_error();
}

static PJRT_Error* upload(PJRT_Client_BufferFromHostBuffer_Args* args) {
  PJRT_Error* error = real->PJRT_Client_BufferFromHostBuffer(args);
  if (!error) live_buffers++;
  return error;
}

static PJRT_Error* destroy_buffer(PJRT_Buffer_Destroy_Args* args) {
  if (args->buffer) live_buffers--;
  return real->PJRT_Buffer_Destroy(args);
}

static PJRT_Error* destroy_client(PJRT_Client_Destroy_Args* args) {
  printf("live buffers: %ld\n", live_buffers);
  fflush(stdout);
  return real->PJRT_Client_Destroy(args);
}

static PJRT_Error* no_devices(PJRT_LoadedExecutable_AddressableDevices_Args* args) {
  args->addressable_devices = NULL;
  args->num_addressable_devices = 0;
  return NULL;
}

static PJRT_Error* no_outputs(PJRT_Executable_NumOutputs_Args* args) {
  args->num_outputs = 0;
  return NULL;
}

static PJRT_Error* no_types(PJRT_Executable_OutputElementTypes_Args* args) {
  args->output_types = NULL;
  args->num_output_types = 0;
  return NULL;
}

static PJRT_Error* no_dims(PJRT_Executable_OutputDimensions_Args* args) {
  args->num_outputs = 0;
  args->dims = NULL;
  args->dim_sizes = NULL;
  return NULL;
}

static PJRT_Error* no_bytes(PJRT_Executable_Serialize_Args* args) {
  args->serialized_bytes = NULL;
  args->serialized_bytes_size = 0;
  args->serialized_executable_deleter = NULL;
  return NULL;
}

const PJRT_Api* GetPjrtApi(void) {
  const char* fault = getenv("LOCKSTEP_TEST_FAULT");
  void* library = dlopen(REAL_PLUGIN, RTLD_NOW | RTLD_LOCAL);
  if (!library || !fault) return NULL;
  real = ((const PJRT_Api* (*)(void))dlsym(library, "GetPjrtApi"))();
  api = *real;
  api.PJRT_Client_BufferFromHostBuffer = upload;
  api.PJRT_Buffer_Destroy = destroy_buffer;
  api.PJRT_Client_Destroy = destroy_client;
  if (!strcmp(fault, "no callbacks")) api.PJRT_Event_OnReady = on_ready;
  if (!strcmp(fault, "null arrays")) {
    api.PJRT_LoadedExecutable_AddressableDevices = no_devices;
    api.PJRT_Executable_NumOutputs = no_outputs;
    api.PJRT_Executable_OutputElementTypes = no_types;
    api.PJRT_Executable_OutputDimensions = no_dims;
    api.PJRT_Executable_Serialize = no_bytes;
  }
  return &api;
}

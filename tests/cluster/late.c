/* The plugin at REAL_PLUGIN, which is late in one process. LOCKSTEP_TEST_LATE says how, as "WHAT PROCESS MILLISECONDS":
   "input" in uploads of batches, "some" in every tenth of them, "launch" in launches of steps, "stall" in every fourth of them, "probe" in probes. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "pjrt_c_api.h"

static const PJRT_Api* real;
static PJRT_Api api;
static char what[16];
static int milliseconds;

static int is(const char* kind) { return !strcmp(what, kind); }

static void be_late(void) { usleep(1000 * milliseconds); }

static PJRT_Error* upload(PJRT_Client_BufferFromHostBuffer_Args* args) {
  static int num_batches;
  /* Seeds and rates have fewer dims. */
  if (args->num_dims == 2) {
    num_batches++;
    if (is("input") || (is("some") && num_batches % 10 == 0)) be_late();
  }
  return real->PJRT_Client_BufferFromHostBuffer(args);
}

static int is_called(PJRT_LoadedExecutable* loaded, const char* name) {
  PJRT_LoadedExecutable_GetExecutable_Args of = {PJRT_LoadedExecutable_GetExecutable_Args_STRUCT_SIZE};
  of.loaded_executable = loaded;
  if (real->PJRT_LoadedExecutable_GetExecutable(&of)) return 0;
  PJRT_Executable_Name_Args named = {PJRT_Executable_Name_Args_STRUCT_SIZE};
  named.executable = of.executable;
  int found = !real->PJRT_Executable_Name(&named) && memmem(named.executable_name, named.executable_name_size, name, strlen(name));
  PJRT_Executable_Destroy_Args gone = {PJRT_Executable_Destroy_Args_STRUCT_SIZE};
  gone.executable = of.executable;
  real->PJRT_Executable_Destroy(&gone);
  return found;
}

static PJRT_Error* execute(PJRT_LoadedExecutable_Execute_Args* args) {
  static int num_steps;
  if (is_called(args->executable, "step")) {
    num_steps++;
    if (is("launch") || (is("stall") && num_steps % 4 == 0)) be_late();
  }
  PJRT_Error* error = real->PJRT_LoadedExecutable_Execute(args);
  if (!error && is("probe") && is_called(args->executable, "probe")) {
    /* After the launch, or it would overlap the one before. */
    PJRT_Event_Await_Args await = {PJRT_Event_Await_Args_STRUCT_SIZE};
    await.event = args->device_complete_events[0];
    error = real->PJRT_Event_Await(&await);
    be_late();
  }
  return error;
}

const PJRT_Api* GetPjrtApi(void) {
  const char* index = getenv("LOCKSTEP_PROCESS_INDEX");
  const char* late = getenv("LOCKSTEP_TEST_LATE");
  int process = -1;
  void* library = dlopen(REAL_PLUGIN, RTLD_NOW | RTLD_LOCAL);
  if (!library) return NULL;
  if (!late || sscanf(late, "%15s %d %d", what, &process, &milliseconds) != 3) return NULL;
  if (!index || atoi(index) != process) *what = 0;
  real = ((const PJRT_Api* (*)(void))dlsym(library, "GetPjrtApi"))();
  api = *real;
  api.PJRT_Client_BufferFromHostBuffer = upload;
  api.PJRT_LoadedExecutable_Execute = execute;
  return &api;
}

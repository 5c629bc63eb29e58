//! The plugins that can be installed, with the versions and hashes of their wheels.
//!
//! The hashes are those of the wheels that `pip` selected for Linux on 2026-11-20. The CPU plugin's
//! wheels were inspected for both processors, and the tests run the x86-64 one. The TPU plugin was
//! installed and loaded without a TPU. The CUDA set of several gigabytes was never downloaded
//! completely: of the x86-64 wheels the plugin itself was loaded without a GPU, and two of NVIDIA's
//! were inspected; the other hashes come from pip's report.
//!
//! The CUDA plugin finds NVIDIA's libraries through its run path (`../../nvidia/cu13/lib` and
//! similar). The set holds what is on that path, so it does not include NVSHMEM, which `jax` lists
//! too.

/// A plugin that can be installed.
#[derive(Debug)]
pub(super) struct CatalogEntry {
    /// `cpu`, `cuda`, `cuda-compiler`, `tpu`.
    pub name: &'static str,
    /// The wheels it consists of, the plugin's own first.
    pub packages: &'static [Package],
    /// The Python version of the wheels, if they exist per version. No Python code of them is used.
    pub python_version: Option<&'static str>,
    /// The platform tags that pip may choose from; `{arch}` is replaced by the processor.
    pub platforms: &'static [&'static str],
    /// The plugin's directory in its wheel, which is also its Python package.
    pub directory: &'static str,
    /// The library's file name in that directory.
    pub library: &'static str,
}

/// One wheel.
#[derive(Debug)]
pub(super) struct Package {
    /// The distribution's name for pip.
    pub distribution: &'static str,
    /// The pinned version.
    pub version: &'static str,
    /// The prefix of the files that are unpacked. NVIDIA's C headers and static libraries are
    /// omitted.
    pub keep: &'static str,
    /// The wheel's hash by processor.
    pub sha256: &'static [(&'static str, &'static str)],
}

impl CatalogEntry {
    /// The version of the plugin itself.
    pub fn version(&self) -> &'static str {
        self.packages[0].version
    }

    /// The path of the plugin's library, relative to the directory where its wheels are unpacked.
    pub fn library_path(&self) -> String {
        format!("{}/{}", self.directory, self.library)
    }
}

/// NVIDIA's wheels have tags from glibc 2.5 to 2.27, and pip only matches exact tags.
const CUDA_PLATFORMS: &[&str] = &[
    "manylinux_2_27_{arch}",
    "manylinux_2_25_{arch}",
    "manylinux_2_17_{arch}",
    "manylinux2014_{arch}",
];

/// The CUDA plugin itself.
const CUDA_PJRT: Package = Package {
    distribution: "jax-cuda13-pjrt",
    version: "0.12.0.1",
    keep: "jax_plugins/xla_cuda13/",
    sha256: &[
        ("x86_64", "5899bb6177eda86ea532afb9a26794f2bdd04966f6a01f9028266b16c2b6cf90"),
        ("aarch64", "40758d042df8c06991b6a1a8016b56e9cefb1ed4c677c062125c3eb71c3dab97"),
    ],
};

/// NVIDIA's assembler and the tools around it.
const CUDA_NVCC: Package = Package {
    distribution: "nvidia-cuda-nvcc",
    version: "13.5.37",
    keep: "nvidia/",
    sha256: &[
        ("x86_64", "f5c4f7ead5d964fb4af42bbf1e6d3ec3c1e6e9d83b53749f691d387e7fcaa3a7"),
        ("aarch64", "588eda18eb5076ae859fe272844b526459228af22df0b117f54eec3aa82bc9c8"),
    ],
};

/// NVIDIA's device library and compiler back end.
const CUDA_NVVM: Package = Package {
    distribution: "nvidia-nvvm",
    version: "13.5.37",
    keep: "nvidia/",
    sha256: &[
        ("x86_64", "c41bfa362e407405163f103c2229f0765f8cc2ed7d148b754dc77f228bf7e070"),
        ("aarch64", "b659bd3115b7ac7ec8931e67d0e2c0dd09cd35b08a6a7372df6f8f22c67da80a"),
    ],
};

/// Every plugin that can be installed.
pub(super) const PLUGINS: &[CatalogEntry] = &[
    CatalogEntry {
        name: "cpu",
        python_version: None,
        platforms: &["manylinux_2_27_{arch}"],
        directory: "xla_plugins/xla_cpu_pjrt",
        library: "xla_cpu_pjrt.so",
        packages: &[Package {
            distribution: "xla-cpu-pjrt",
            version: "0.0.1",
            keep: "xla_plugins/xla_cpu_pjrt/",
            sha256: &[
                ("x86_64", "55837b6b7b47daa717f2d9a5a03563ea0ceaa338d06a81a1e2d3f060d960decc"),
                ("aarch64", "8f613be6e891858f40d64f9799319502fff42689661944fc18a6ffd8210b30c9"),
            ],
        }],
    },
    CatalogEntry {
        name: "cuda",
        python_version: None,
        platforms: CUDA_PLATFORMS,
        directory: "jax_plugins/xla_cuda13",
        library: "xla_cuda_plugin.so",
        packages: &[
            CUDA_PJRT,
            Package {
                distribution: "nvidia-cublas",
                version: "13.10.0.20",
                keep: "nvidia/",
                sha256: &[
                    ("x86_64", "dcc6d63884c53d07e267ce7e6feac17b2538cebaafec5db865736c3e28e4dc84"),
                    ("aarch64", "c5f3418c0a845232a8cabc58f6fa52cfae7d8bd3680d94c3907aca710fd48d70"),
                ],
            },
            Package {
                distribution: "nvidia-cuda-cupti",
                version: "13.5.25",
                keep: "nvidia/",
                sha256: &[
                    ("x86_64", "9dcca41c12a734192b14e7128ae116bc9ce1b9da686e2ebf48ae7a4415f76650"),
                    ("aarch64", "d7e4d908315461b6ecbdadfd3c403cc796ed218b293ad117568c947e811cff28"),
                ],
            },
            CUDA_NVCC,
            Package {
                distribution: "nvidia-cuda-nvrtc",
                version: "13.5.37",
                keep: "nvidia/",
                sha256: &[
                    ("x86_64", "86b4d68058807988b7d9af5b44917a0601e9c337f35ccd657bfb3c759ff8d8bc"),
                    ("aarch64", "36e4fa2a8ada293f5693d308e531c196ab6f91cf7a0ff479bf96a537d43a6096"),
                ],
            },
            Package {
                distribution: "nvidia-cuda-runtime",
                version: "13.5.37",
                keep: "nvidia/",
                sha256: &[
                    ("x86_64", "df2b79a8852f10d1fef8c848489c49eebb5754051bf870202a862831412b179d"),
                    ("aarch64", "de2dc5a7367974228b0a69588a9acc9340d3768bef1bf38bf0801eb08497cd2d"),
                ],
            },
            Package {
                distribution: "nvidia-cudnn-cu13",
                version: "9.28.0.42",
                keep: "nvidia/",
                sha256: &[
                    ("x86_64", "7358353c75bb121a58e5f7712fe6d588883dc1df8ba00f428237e44e97543c4d"),
                    ("aarch64", "97c70c7fe0ea32e97fcd0b40157915d27f0d1e238479e537e81b12ed3c8f17ae"),
                ],
            },
            Package {
                distribution: "nvidia-cufft",
                version: "12.5.0.14",
                keep: "nvidia/",
                sha256: &[
                    ("x86_64", "b8be26837a5abad2b5b74f3e92dd29f622a42934b355be0961a48712cbba23ad"),
                    ("aarch64", "091cde103312d6e09366122fe3f67092dcfd94cc9785029d695d6bcffaa76fdf"),
                ],
            },
            Package {
                distribution: "nvidia-cusolver",
                version: "12.4.1.2",
                keep: "nvidia/",
                sha256: &[
                    ("x86_64", "b3b8e02fd2f2df869369af075dc3a179d43f6f7b85e94632a7dce556697be044"),
                    ("aarch64", "1f54c8e0d5b1ebd183b4c5a79f0709fa90241e8254da381ca5b969ee97c8de32"),
                ],
            },
            Package {
                distribution: "nvidia-cusparse",
                version: "12.9.4.2",
                keep: "nvidia/",
                sha256: &[
                    ("x86_64", "072667e58c851a318738f5527a12eb225cbf058803f2ea451c722d8cf8edddec"),
                    ("aarch64", "e2ce97f185c9c4b285e4a8fbf02cb96dd1b8dd66736ebe2f0a8da5f6012a4fb7"),
                ],
            },
            Package {
                distribution: "nvidia-nccl-cu13",
                version: "2.32.3",
                keep: "nvidia/",
                sha256: &[
                    ("x86_64", "1459723080ac889d73a26edfa3e04383a7928ab31ac8f0ec43b3ea9548b04ff3"),
                    ("aarch64", "a5bee92b2f4af218c109f8d221c3c9adcc752b94ae0ffcb0ed5abf9341a7724c"),
                ],
            },
            Package {
                distribution: "nvidia-nvjitlink",
                version: "13.5.37",
                keep: "nvidia/",
                sha256: &[
                    ("x86_64", "280d7cb9649704145f074b8dbde500de04ce02d0872e066e20a83c17bcaa93eb"),
                    ("aarch64", "893f6f9a55b2720ed94913b5ba3332e972da8c78dfa2863d0244403dbd528ffc"),
                ],
            },
            CUDA_NVVM,
        ],
    },
    // For compiling for GPUs on a machine without one: half a gigabyte instead of several. In this
    // layout the plugin finds the assembler and the device library.
    CatalogEntry {
        name: "cuda-compiler",
        python_version: None,
        platforms: CUDA_PLATFORMS,
        directory: "jax_plugins/xla_cuda13",
        library: "xla_cuda_plugin.so",
        packages: &[
            CUDA_PJRT,
            Package { keep: "nvidia/cu13/bin/ptxas", ..CUDA_NVCC },
            Package { keep: "nvidia/cu13/nvvm/libdevice/", ..CUDA_NVVM },
        ],
    },
    CatalogEntry {
        name: "tpu",
        python_version: Some("3.12"),
        platforms: &["manylinux_2_31_{arch}"],
        directory: "libtpu",
        library: "libtpu.so",
        packages: &[Package {
            distribution: "libtpu",
            version: "0.0.51",
            keep: "libtpu/",
            sha256: &[(
                "x86_64",
                "aeb662a3174a89fd9a94ac64c965a72f43c65436f5546abbcb8968c9d9552631",
            )],
        }],
    },
];

/// The entry of the plugin called `name`.
pub(super) fn catalog_entry(name: &str) -> Option<&'static CatalogEntry> {
    PLUGINS.iter().find(|plugin| plugin.name == name)
}

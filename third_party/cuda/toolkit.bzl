"""Finds the CUDA toolkit of this machine; nothing is downloaded.

It is looked for in $THERMOCLINE_CUDA_HOME, then $CUDA_HOME, then /usr/local/cuda. Where there is none,
@local_cuda says so, and what needs it is left out of the build. To build without a toolkit that is there:

    bazel build --repo_env=THERMOCLINE_CUDA_HOME=none ...
"""

_BUILD = """
package(default_visibility = ["//visibility:public"])

# The static runtime loads the driver when it is first called: programs start on machines without one.
cc_library(
    name = "cudart",
    hdrs = glob(["include/*.h", "include/crt/*", "include/*.hpp"]),
    includes = ["include"],
    linkopts = ["-L{home}/lib64", "-lcudart_static", "-ldl", "-lrt", "-lpthread"],
)

# Names of ranges, for profilers. Headers alone: a profiler brings the library.
cc_library(
    name = "nvtx",
    hdrs = glob(["include/nvtx3/**"]),
    includes = ["include"],
    linkopts = ["-ldl"],
)

# cuBLASLt is loaded by name at run time (kernels/cuda/cublaslt_library.cc): only headers are needed,
# and where this machine has the library.
cc_library(
    name = "cublaslt_headers",
    hdrs = ["cuda_library_folder.h"],
    includes = ["."],
    deps = [":cudart"],
)
"""

def _find_home(ctx):
    env = ctx.os.environ
    home = env.get("THERMOCLINE_CUDA_HOME") or env.get("CUDA_HOME") or "/usr/local/cuda"
    if home == "none" or not home.startswith("/"):
        return ""
    for needed in ["bin/nvcc", "include/cuda_runtime.h", "include/cublasLt.h", "lib64/libcudart_static.a"]:
        if not ctx.path(home + "/" + needed).exists:
            return ""
    return home

def _cuda_toolkit_impl(ctx):
    home = _find_home(ctx)
    ctx.file("toolkit.bzl", "CUDA_HOME = \"%s\"\n" % home)
    if home:
        ctx.symlink(home + "/include", "include")
        ctx.file(
            "cuda_library_folder.h",
            "#define THERMOCLINE_CUDA_LIBRARY_FOLDER \"%s/lib64\"\n" % home,
        )
        ctx.file("BUILD", _BUILD.replace("{home}", home))
    else:
        ctx.file("BUILD", "")

cuda_toolkit = repository_rule(
    implementation = _cuda_toolkit_impl,
    environ = ["THERMOCLINE_CUDA_HOME", "CUDA_HOME"],
    local = True,
    doc = "Makes @local_cuda: toolkit.bzl with CUDA_HOME (empty: no toolkit), and its libraries.",
)

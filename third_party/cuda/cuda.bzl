"""cuda_library: .cu files compiled with nvcc, whatever compiler and sanitizer the rest is built with."""

load("@local_cuda//:toolkit.bzl", "CUDA_HOME")

HAS_CUDA = CUDA_HOME != ""

# The bits of a trained model depend on these as on those of .bazelrc. The last architecture is kept as
# PTX too, which later ones translate when a program starts.
_NVCC_FLAGS = [
    "-O3",
    "-std=c++17",
    "-fmad=false",
    "--expt-relaxed-constexpr",
    "-gencode=arch=compute_80,code=sm_80",
    "-gencode=arch=compute_90,code=[sm_90,compute_90]",
    "--threads=2",
    "-ccbin=/usr/bin/g++",
    "-Xcompiler=-fPIC,-march=x86-64-v3,-ffp-contract=off,-fno-math-errno,-Wall",
    "-DNDEBUG",
]

def _cuda_objects_impl(ctx):
    headers = [dep[CcInfo].compilation_context.headers for dep in ctx.attr.deps]
    objects = []
    for src in ctx.files.srcs:
        stem = src.basename[:-len(".cu")]
        object = ctx.actions.declare_file(stem + ".cu.pic.o")
        ctx.actions.run(
            executable = CUDA_HOME + "/bin/nvcc",
            arguments = _NVCC_FLAGS + ["-I.", "-c", src.path, "-o", object.path],
            inputs = depset(ctx.files.srcs + ctx.files.hdrs, transitive = headers),
            outputs = [object],
            env = {"PATH": "/usr/bin:/bin"},
            mnemonic = "Nvcc",
            progress_message = "Compiling %s with nvcc" % src.short_path,
        )
        objects.append(object)
    return [DefaultInfo(files = depset(objects))]

_cuda_objects = rule(
    implementation = _cuda_objects_impl,
    attrs = {
        "srcs": attr.label_list(allow_files = [".cu"]),
        "hdrs": attr.label_list(allow_files = [".h", ".cuh"]),
        "deps": attr.label_list(providers = [CcInfo]),
    },
)

def cuda_library(name, srcs, hdrs = [], deps = [], visibility = None):
    """A cc_library of .cu files. REQUIRES: HAS_CUDA

    Args:
      name: of the cc_library.
      srcs: the .cu files; each is compiled alone.
      hdrs: headers of these, plain C++ for those who depend on this.
      deps: cc_library targets whose headers the .cu files may include.
      visibility: as usual.
    """
    _cuda_objects(
        name = name + "_objects",
        srcs = srcs,
        hdrs = hdrs,
        deps = deps,
        visibility = ["//visibility:private"],
    )
    native.cc_library(
        name = name,
        srcs = [name + "_objects"],
        hdrs = hdrs,
        visibility = visibility,
        deps = deps + ["@local_cuda//:cudart"],
    )

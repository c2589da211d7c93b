"""C++ code from .proto files with the system's protoc and gRPC plugin."""

def cc_proto_source_library(name, src, deps = [], grpc = False, visibility = None):
    """Generates and compiles one .proto file of this package.

    Args:
      name: of the resulting cc_library.
      src: the .proto file.
      deps: cc_proto_source_library targets whose .proto files it imports.
      grpc: whether to generate service stubs as well.
      visibility: as usual.
    """
    stem = src[:-len(".proto")]
    hdrs = [stem + ".pb.h"] + ([stem + ".grpc.pb.h"] if grpc else [])
    srcs = [stem + ".pb.cc"] + ([stem + ".grpc.pb.cc"] if grpc else [])
    native.filegroup(
        name = name + "_proto_srcs",
        srcs = [src] + [d + "_proto_srcs" for d in deps],
    )
    command = "protoc -I. --cpp_out=$(GENDIR)"
    if grpc:
        command += " --grpc_out=$(GENDIR) --plugin=protoc-gen-grpc=$$(command -v grpc_cpp_plugin)"
    native.genrule(
        name = name + "_generate",
        srcs = [src] + [d + "_proto_srcs" for d in deps],
        outs = hdrs + srcs,
        cmd = command + " $(location " + src + ")",
    )
    native.cc_library(
        name = name,
        srcs = srcs,
        hdrs = hdrs,
        copts = ["-Wno-unused-parameter"],
        visibility = visibility,
        deps = deps + ["//third_party:grpc" if grpc else "//third_party:protobuf"],
    )

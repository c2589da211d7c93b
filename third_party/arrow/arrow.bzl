"""Finds the Arrow C++ that deploy/setup.sh unpacked from PyPI's pyarrow wheel; nothing is downloaded here.

It is looked for in $THERMOCLINE_ARROW_HOME, then $HOME/.local/share/thermocline/arrow: a folder pyarrow/ with
include/ and libarrow.so.N, libparquet.so.N, libarrow_s3.so.N. Where there is none, @local_arrow says so, and programs
are built that refuse Parquet and s3:// with a message. To build without one that is there:

    bazel build --repo_env=THERMOCLINE_ARROW_HOME=none ...
"""

_LIBRARIES = ["libarrow.so", "libparquet.so", "libarrow_s3.so"]

# libparquet exports an OpenSSL of its own. The system's comes first, so that gRPC uses the system's.
_BUILD = """
package(default_visibility = ["//visibility:public"])

cc_library(
    name = "arrow",
    hdrs = glob(["include/**/*.h"]),
    includes = ["include"],
    linkopts = [
        "-Wl,--push-state,--no-as-needed",
        "-lssl",
        "-lcrypto",
        "-Wl,--pop-state",
        "-L{home}",
        "-Wl,-rpath,{home}",
        {libraries},
    ],
)
"""

def _find(ctx):
    """The folder and its libraries; ("", []) where one is missing."""
    env = ctx.os.environ
    home = env.get("THERMOCLINE_ARROW_HOME") or (env.get("HOME", "") + "/.local/share/thermocline/arrow")
    home += "/pyarrow"
    if not home.startswith("/") or not ctx.path(home + "/include/parquet/file_reader.h").exists:
        return "", []
    names = [path.basename for path in ctx.path(home).readdir()]
    found = []
    for library in _LIBRARIES:
        versions = sorted([name for name in names if name.startswith(library + ".")])
        if not versions:
            return "", []
        found.append(versions[0])
    return home, found

def _arrow_library_impl(ctx):
    home, libraries = _find(ctx)
    ctx.file("arrow.bzl", "HAS_ARROW = %s\n" % bool(home))
    if home:
        ctx.symlink(home + "/include", "include")
        links = ", ".join(["\"-l:%s\"" % name for name in libraries])
        ctx.file("BUILD", _BUILD.replace("{home}", home).replace("{libraries}", links))
    else:
        ctx.file("BUILD", "")

arrow_library = repository_rule(
    implementation = _arrow_library_impl,
    environ = ["THERMOCLINE_ARROW_HOME", "HOME"],
    local = True,
    doc = "Makes @local_arrow: arrow.bzl with HAS_ARROW, and the library.",
)

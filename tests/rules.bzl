"""Libraries, tests and benchmarks of a folder."""

def _joined(name, srcs, awk_flags = "", **kwargs):
    """`srcs`; with --define=joined=1 (tests/run.sh) their .cc files are one compile unit, //tests:join.awk's."""
    sources = [src for src in srcs if src.endswith(".cc")]
    if len(sources) < 2:
        return srcs
    native.genrule(
        name = name + "_source",
        srcs = sources,
        outs = [name + ".cc"],
        cmd = "awk %s -f $(location //tests:join.awk) $(SRCS) >$@" % awk_flags,
        tags = ["manual"],
        tools = ["//tests:join.awk"],
        visibility = ["//visibility:private"],
        **kwargs
    )
    return [src for src in srcs if src not in sources] + select({
        "//tests:joined": [name + ".cc"],
        "//conditions:default": sources,
    })

def library(name, srcs = [], copts = [], **kwargs):
    """A folder's C++, or a part of it; tests/run.sh compiles its files as one.

    Args:
      name: of the library.
      srcs: its files; two of them have no name in common in their unnamed namespaces.
      copts: as of cc_library.
      **kwargs: as of cc_library.
    """
    native.cc_library(
        name = name,
        srcs = _joined(name + "_joined", srcs, testonly = kwargs.get("testonly", False)),
        # GCC takes the unnamed namespace of a file that is joined for that of a header.
        copts = copts + select({
            "//tests:joined": ["-Wno-subobject-linkage"],
            "//conditions:default": [],
        }),
        **kwargs
    )

def _is_test(src):
    return src.endswith("_test.cc")

def _joined_tests(name, srcs):
    """The sources of a test, its *_test.cc joined."""
    tests = [src for src in srcs if _is_test(src)]
    return [src for src in srcs if src not in tests] + _joined(
        name + "_joined_test",
        tests,
        "-v separate=1",
        testonly = True,
    )

def unit_test(name, deps, srcs = None, size = "small", **kwargs):
    """One binary of GoogleTest tests.

    Args:
      name: of the test.
      deps: what it tests; GoogleTest comes by itself.
      srcs: default: every *_test.cc of the folder.
      size: as usual.
      **kwargs: as of cc_test.
    """
    if srcs == None:
        srcs = native.glob(["*_test.cc"])
    native.cc_test(
        name = name,
        size = size,
        srcs = _joined_tests(name, srcs),
        deps = deps + ["//third_party:gtest_main"],
        **kwargs
    )

def shared_tests(name, srcs, deps):
    """GoogleTest tests that several binaries run, each on something else: a library for the `deps` of these.

    Args:
      name: of the library.
      srcs: its files.
      deps: of these; GoogleTest comes by itself.
    """
    native.cc_library(
        name = name,
        testonly = True,
        srcs = _joined_tests(name, srcs),
        alwayslink = True,
        visibility = ["//visibility:private"],
        deps = deps + ["//third_party:gtest_main"],
    )

def benchmark(name, srcs, deps, tiny_args = None, **kwargs):
    """A benchmark, and a test that runs it tiny, so that it keeps working.

    Args:
      name: of the binary; the test is NAME_test.
      srcs: of both.
      deps: of both.
      tiny_args: the test's arguments; None: there is no test.
      **kwargs: as of cc_binary.
    """
    native.cc_library(
        name = name + "_main",
        testonly = True,
        srcs = srcs,
        alwayslink = True,
        visibility = ["//visibility:private"],
        deps = deps,
    )
    native.cc_binary(name = name, testonly = True, deps = [":%s_main" % name], **kwargs)
    if tiny_args != None:
        native.cc_test(
            name = name + "_test",
            size = "small",
            args = tiny_args,
            tags = ["benchmark"],
            deps = [":%s_main" % name],
        )

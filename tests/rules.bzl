"""Tests and benchmarks of a folder."""

def unit_test(name, deps, srcs = None, size = "small", **kwargs):
    """One binary of GoogleTest tests.

    Args:
      name: of the test.
      deps: what it tests; GoogleTest comes by itself.
      srcs: default: every *_test.cc of the folder.
      size: as usual.
      **kwargs: as of cc_test.
    """
    native.cc_test(
        name = name,
        size = size,
        srcs = srcs if srcs != None else native.glob(["*_test.cc"]),
        deps = deps + ["//third_party:gtest_main"],
        **kwargs
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
    native.cc_binary(name = name, testonly = True, srcs = srcs, deps = deps, **kwargs)
    if tiny_args != None:
        native.cc_test(
            name = name + "_test",
            size = "small",
            srcs = srcs,
            args = tiny_args,
            tags = ["benchmark"],
            deps = deps,
        )

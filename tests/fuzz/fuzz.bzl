"""One fuzz target: a fuzzer (--config=asan), and a test that feeds its corpus to it once."""

def fuzz_target(name, deps):
    native.cc_library(
        name = name + "_fuzz",
        testonly = True,
        srcs = [name + "_fuzz.cc"],
        alwayslink = True,
        deps = deps + [":fuzz_target"],
    )

    # Only clang links it: tests/run.sh fuzz.
    native.cc_binary(
        name = name + "_fuzzer",
        testonly = True,
        linkopts = ["-fsanitize=fuzzer"],
        tags = ["manual"],
        deps = [":%s_fuzz" % name],
    )
    native.cc_test(
        name = name + "_corpus_test",
        size = "small",
        args = ["tests/fuzz/corpus/" + name],
        data = native.glob(["corpus/" + name + "/*"]),
        deps = [
            ":%s_fuzz" % name,
            ":replay_main",
        ],
    )

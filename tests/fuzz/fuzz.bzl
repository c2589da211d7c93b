"""One fuzz target: a fuzzer (--config=asan), and a test that feeds its corpus to it once."""

def fuzz_target(name, deps):
    srcs = [name + "_fuzz.cc", "fuzz_target.h"]

    # Only clang links it: tests/run.sh fuzz.
    native.cc_binary(
        name = name + "_fuzzer",
        testonly = True,
        srcs = srcs,
        linkopts = ["-fsanitize=fuzzer"],
        tags = ["manual"],
        deps = deps,
    )
    native.cc_test(
        name = name + "_corpus_test",
        size = "small",
        srcs = srcs + ["replay_main.cc"],
        args = ["tests/fuzz/corpus/" + name],
        data = native.glob(["corpus/" + name + "/*"]),
        deps = deps,
    )

// The function that every fuzz target defines. In its corpus_test replay_main.cc gives it files; in
// its fuzzer (--config=asan) libFuzzer generates inputs.
#ifndef THERMOCLINE_TESTS_FUZZ_FUZZ_TARGET_H_
#define THERMOCLINE_TESTS_FUZZ_FUZZ_TARGET_H_

#include <cstddef>
#include <cstdint>

// Must not crash, hang, or fail a CHECK, whatever the bytes are. Returns 0.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

#endif  // THERMOCLINE_TESTS_FUZZ_FUZZ_TARGET_H_

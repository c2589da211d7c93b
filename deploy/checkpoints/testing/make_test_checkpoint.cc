// Writes the checkpoints of testing.h to a folder: make_test_checkpoint DIRECTORY
#include <cstdio>

#include "common/disk/disk.h"
#include "deploy/checkpoints/testing/exported_checkpoint.h"

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: make_test_checkpoint DIRECTORY\n");
    return 2;
  }
  thermocline::PosixDisk disk;
  thermocline::TestRows rows;
  thermocline::MakeExportedCheckpoint(&disk, argv[1], &rows);
  return 0;
}

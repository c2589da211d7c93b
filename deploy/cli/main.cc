// The program thermocline.
#include <string>
#include <vector>

#include "common/base/process.h"
#include "common/net/rpc.h"
#include "deploy/cli/command_line.h"

int main(int argc, char** argv) {
  thermocline::KeepGrpcQuiet();
  thermocline::RaiseOpenFileLimit();
  return thermocline::RunCommandLine(std::vector<std::string>(argv + 1, argv + argc));
}

// thermocline: the command line. See command.h.
#include <string>
#include <vector>

#include "deploy/cli/command.h"

int main(int argc, char** argv) {
  return thermocline::RunCommandLine(std::vector<std::string>(argv + 1, argv + argc));
}

// Programs that tests put in the place of real ones, which are not there or must not be called.
#ifndef THERMOCLINE_TESTS_TESTING_FAKE_PROGRAMS_H_
#define THERMOCLINE_TESTS_TESTING_FAKE_PROGRAMS_H_

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include "absl/strings/str_cat.h"

namespace thermocline {

// As long as this lives, fakes come first on the PATH, and find a folder of their own in $FAKES.
// One at a time; not thread-safe.
class FakePrograms {
 public:
  FakePrograms() {
    std::string name = testing::TempDir() + "/fakes_XXXXXX";
    folder_ = std::filesystem::path(mkdtemp(name.data())).lexically_normal().string();
    std::filesystem::create_directories(folder_ + "/bin");
    setenv("PATH", absl::StrCat(folder_, "/bin:", path_).c_str(), 1);
    setenv("FAKES", folder_.c_str(), 1);
  }
  ~FakePrograms() { setenv("PATH", path_.c_str(), 1); }
  FakePrograms(const FakePrograms&) = delete;
  FakePrograms& operator=(const FakePrograms&) = delete;

  const std::string& folder() const { return folder_; }
  // A program in bash. `notes_words`: each call is a line of $FAKES/calls: "NAME WORDS".
  void Add(const std::string& name, const std::string& body, bool notes_words = true) const {
    const std::string path = absl::StrCat(folder_, "/bin/", name);
    const std::string note = absl::StrCat("echo \"", name, " $*\" >>\"$FAKES/calls\"\n");
    std::ofstream(path) << "#!/bin/bash\n" << (notes_words ? note : "") << body << "\n";
    chmod(path.c_str(), 0755);
  }
  // Of a file in the folder; "": there is none.
  std::string Text(const std::string& name) const {
    std::ifstream file(absl::StrCat(folder_, "/", name));
    return {std::istreambuf_iterator<char>(file), {}};
  }
  void Write(const std::string& name, const std::string& text) const {
    std::ofstream(absl::StrCat(folder_, "/", name)) << text;
  }

 private:
  const std::string path_ = getenv("PATH");
  std::string folder_;
};

}  // namespace thermocline

#endif  // THERMOCLINE_TESTS_TESTING_FAKE_PROGRAMS_H_

// Scripts that tests run in place of real programs, which are not there or must not be called.
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

// A folder of fake programs. While this object lives, its programs come first on the PATH, and find
// the folder in $FAKES. There may be one such object at a time. Not thread-safe.
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
  // Adds the program `name`, whose `body` is bash.
  //   notes_words: whether each call adds a line "NAME WORDS" to $FAKES/calls
  void Add(const std::string& name, const std::string& body, bool notes_words = true) const {
    const std::string path = absl::StrCat(folder_, "/bin/", name);
    const std::string note = absl::StrCat("echo \"", name, " $*\" >>\"$FAKES/calls\"\n");
    std::ofstream(path) << "#!/bin/bash\n" << (notes_words ? note : "") << body << "\n";
    chmod(path.c_str(), 0755);
  }
  // The text of the file `name` in the folder; "" if there is none.
  std::string Text(const std::string& name) const {
    std::ifstream file(absl::StrCat(folder_, "/", name));
    return {std::istreambuf_iterator<char>(file), {}};
  }
  // Writes `text` to the file `name` in the folder.
  void Write(const std::string& name, const std::string& text) const {
    std::ofstream(absl::StrCat(folder_, "/", name)) << text;
  }

 private:
  const std::string path_ = getenv("PATH");
  std::string folder_;
};

}  // namespace thermocline

#endif  // THERMOCLINE_TESTS_TESTING_FAKE_PROGRAMS_H_

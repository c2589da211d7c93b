// A script that does what its arguments say, one after the other, right or wrong:
//
//   hello       takes the worker's first message, and answers it
//   next        takes the next message; a batch is the one that answers are for from then on
//   fill=VALUE  writes VALUE to the batch's gradients, scores and own metric; its last row has no
//               gradient
//   KIND[,FIELD=VALUE...]  sends a message, such as step or 77. Its slot and step are the batch's,
//               unless they are given; other fields are value, rate, flags, bytes and text. A state
//               has `bytes` times an x, and with unsealed=1 no seals
//   echo        fails with the payload of the last message, or with what its file has
//   job         fails with the job of the worker's first message
//   close       closes the socket
//   stay        waits for a signal
//   exit=CODE, signal=NUMBER
//
// At the end it exits with 0.
#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "common/version/version.h"
#include "worker/api/script_protocol.h"

namespace {

using Fields = std::map<std::string, std::string>;

int way = -1;
tc_header received = {}, batch = {};
std::string payload, file, job;
std::vector<tc_array_place> places;
char* slots[TC_MAX_SLOTS] = {};

[[noreturn]] void Fail(const char* what) {
  perror(what);
  _exit(99);
}

char* Map(int fd, size_t* bytes) {
  struct stat status = {};
  if (fstat(fd, &status) != 0) Fail("fstat");
  *bytes = static_cast<size_t>(status.st_size);
  void* const data = mmap(nullptr, *bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (data == MAP_FAILED) Fail("mmap");
  return static_cast<char*>(data);
}

void Next() {
  std::vector<char> packet(TC_MESSAGE_BYTES);
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  iovec piece = {packet.data(), packet.size()};
  msghdr message = {};
  message.msg_iov = &piece;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof(control);
  const ssize_t bytes = recvmsg(way, &message, 0);
  if (bytes < static_cast<ssize_t>(sizeof(received))) Fail("recvmsg");
  std::memcpy(&received, packet.data(), sizeof(received));
  payload.assign(packet.data() + sizeof(received), bytes - sizeof(received));
  char* memory = nullptr;
  size_t mapped = 0;
  if (const cmsghdr* const rights = CMSG_FIRSTHDR(&message); rights != nullptr) {
    int fd;
    std::memcpy(&fd, CMSG_DATA(rights), sizeof(fd));
    memory = Map(fd, &mapped);
  }
  if (received.kind == TC_BATCH) {
    batch = received;
    if (memory != nullptr) slots[batch.slot] = memory;
    places.resize(batch.count);
    std::memcpy(places.data(), payload.data(), payload.size());
  } else if (memory != nullptr) {
    file.assign(memory, received.bytes);
  }
}

void Fill(float value) {
  for (const tc_array_place& place : places) {
    char* const at = slots[batch.slot] + place.offset;
    auto* const floats = reinterpret_cast<float*>(at);
    if (place.kind == TC_GRADIENTS || place.kind == TC_SCORES_ARRAY ||
        place.kind == TC_OWN_METRIC) {
      for (uint64_t i = 0; i < place.count; ++i) floats[i] = value;
    } else if (place.kind == TC_HAS_GRADIENT) {
      std::memset(at, 1, place.count);
      at[place.count - 1] = 0;
    }
  }
}

// A file of so many 'x'.
int MakeState(size_t bytes, bool is_sealed) {
  const int fd = memfd_create("state", MFD_ALLOW_SEALING);
  const std::string state(bytes, 'x');
  if (write(fd, state.data(), bytes) != static_cast<ssize_t>(bytes)) Fail("write");
  if (is_sealed) fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE);
  return fd;
}

void Send(uint32_t kind, const Fields& fields) {
  const auto number = [&fields](const char* name, double otherwise) {
    const auto found = fields.find(name);
    return found == fields.end() ? otherwise : std::strtod(found->second.c_str(), nullptr);
  };
  tc_header header = {};
  header.kind = kind;
  header.slot = static_cast<uint32_t>(number("slot", batch.slot));
  header.step = static_cast<int64_t>(number("step", static_cast<double>(batch.step)));
  header.value = number("value", 0);
  header.rate = static_cast<float>(number("rate", std::strtod("nan", nullptr)));
  header.flags = static_cast<uint32_t>(number("flags", 0));
  header.bytes = static_cast<uint64_t>(number("bytes", 0));
  header.count = kind == TC_READY ? TC_PROTOCOL : 0;
  std::string text = fields.count("text") > 0 ? fields.at("text") : "";
  iovec pieces[] = {{&header, sizeof(header)}, {text.data(), text.size()}};
  msghdr message = {};
  message.msg_iov = pieces;
  message.msg_iovlen = 2;
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  if (kind == TC_STATE) {
    const int fd = MakeState(header.bytes, number("unsealed", 0) == 0);
    message.msg_control = control;
    message.msg_controllen = sizeof(control);
    cmsghdr* const rights = CMSG_FIRSTHDR(&message);
    rights->cmsg_level = SOL_SOCKET;
    rights->cmsg_type = SCM_RIGHTS;
    rights->cmsg_len = CMSG_LEN(sizeof(int));
    std::memcpy(CMSG_DATA(rights), &fd, sizeof(fd));
  }
  if (sendmsg(way, &message, MSG_NOSIGNAL) < 0) Fail("sendmsg");
}

// "step,rate=-1": the words before the commas, and behind.
Fields Split(const std::string& action, std::string* verb) {
  Fields fields;
  size_t begin = action.find(',');
  *verb = action.substr(0, begin);
  while (begin != std::string::npos) {
    const size_t end = action.find(',', begin + 1);
    const std::string field = action.substr(begin + 1, end - begin - 1);
    fields[field.substr(0, field.find('='))] = field.substr(field.find('=') + 1);
    begin = end;
  }
  return fields;
}

void Do(const std::string& action) {
  static const std::map<std::string, uint32_t> kKinds = {
      {"ready", TC_READY},     {"step", TC_STEP},       {"scores", TC_SCORES},
      {"release", TC_RELEASE}, {"state", TC_STATE},     {"evaluate", TC_EVALUATE},
      {"failed", TC_FAILED},   {"warning", TC_WARNING}, {"done", TC_DONE}};
  std::string verb;
  const Fields fields = Split(action, &verb);
  const std::string value = verb.substr(verb.find('=') + 1);
  if (verb == "next") return Next();
  if (verb == "close") return static_cast<void>(close(way));
  if (verb == "stay") return static_cast<void>(pause());
  if (verb.rfind("fill=", 0) == 0) return Fill(std::strtof(value.c_str(), nullptr));
  if (verb.rfind("exit=", 0) == 0) _exit(std::atoi(value.c_str()));
  if (verb.rfind("signal=", 0) == 0) {
    signal(std::atoi(value.c_str()), SIG_DFL);  // A sanitizer has handlers of its own.
    raise(std::atoi(value.c_str()));
    return;
  }
  if (verb == "echo") return Send(TC_FAILED, {{"text", file.empty() ? payload : file}});
  if (verb == "job") return Send(TC_FAILED, {{"text", job}});
  if (verb == "hello") {
    Next();
    Send(TC_READY, {{"text", THERMOCLINE_VERSION}});
    job = std::exchange(file, "");
    return;
  }
  const auto kind = kKinds.find(verb);
  Send(kind == kKinds.end() ? static_cast<uint32_t>(std::atoi(verb.c_str())) : kind->second,
       fields);
}

}  // namespace

int main(int argc, char** argv) {
  const char* const environment = getenv(TC_ENVIRONMENT);
  if (environment == nullptr) Fail(TC_ENVIRONMENT);
  way = std::atoi(environment);
  for (int i = 1; i < argc; ++i) Do(argv[i]);
  return 0;
}

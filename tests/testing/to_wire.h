// Turns a worker's calls into the messages that a server decodes, for transports of tests that skip
// the bytes.
#ifndef THERMOCLINE_TESTS_TESTING_TO_WIRE_H_
#define THERMOCLINE_TESTS_TESTING_TO_WIRE_H_

#include "common/wire/messages.h"
#include "worker/session/transport.h"

namespace thermocline {

wire::PullRequest ToWire(const PullCall& call);
wire::PushChunk ToWire(const PushCall& call);

}  // namespace thermocline

#endif  // THERMOCLINE_TESTS_TESTING_TO_WIRE_H_

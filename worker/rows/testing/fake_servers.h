// Servers of a random trace. Their answers come late, out of order, and sometimes not at all.
#ifndef THERMOCLINE_WORKER_ROWS_TESTING_FAKE_SERVERS_H_
#define THERMOCLINE_WORKER_ROWS_TESTING_FAKE_SERVERS_H_

#include <algorithm>
#include <cstdint>
#include <functional>
#include <map>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/base/ids.h"
#include "common/wire/messages.h"
#include "tests/testing/virtual_scheduler.h"
#include "worker/rows/testing/row_source_trace.h"
#include "worker/session/transport.h"

namespace thermocline {

// Rows of kDenseTable.
inline constexpr int kDenseBlocks = 2;

struct Written {
  TableKey key;
  wire::PushKind kind = wire::PushKind::kGradient;
  uint32_t count = 0;
  Floats values;
};

// All servers and, where there are two workers, the pushes of the other one. A request that a real
// server would refuse fails the test.
class FakeServers : public Transport {
 public:
  // Called when a server has applied this worker's push.
  using OnApplied =
      std::function<void(uint32_t server, Step step, const std::vector<Written>& written)>;

  // `trace` and `scheduler` outlive it.
  FakeServers(const RowTrace& trace, VirtualScheduler* scheduler, uint64_t seed,
              OnApplied on_applied);

  void Pull(ServerIndex server, const PullCall& call, int64_t deadline_us,
            std::function<void(absl::StatusOr<wire::PullAnswer>)> done) override;
  void Push(ServerIndex server, const PushCall& call, int64_t deadline_us,
            std::function<void(absl::StatusOr<wire::PushAnswer>)> done) override;
  void Close() override { closed_ = true; }

  const Rows& RowsOf(uint32_t server) const { return servers_[server].rows; }

  // Whether some state of the row, as it was once both workers' pushes through `through` had been
  // applied or later, begins with these floats.
  bool WasReadable(const TableKey& key, Step through, absl::Span<const float> values) const;

 private:
  // Calls that fail do so before or after they took effect.
  enum class Fate { kArrives, kLost, kAnswerLost };
  struct Server {
    Rows rows;
    Step applied;
    Step others_applied;                              // with one worker: all there will be
    std::map<uint32_t, std::vector<Written>> chunks;  // of the push under way
    // Several workers:
    int64_t events = 0;                                                   // pushes applied
    std::vector<int64_t> complete_at;                                     // [steps complete] event
    std::map<TableKey, std::vector<std::pair<int64_t, Floats>>> history;  // by event

    Step complete_through() const { return std::min(applied, others_applied); }
  };

  int64_t Delay() { return random_.Draw(0, trace_.most_delay_us); }
  Fate DrawFate();
  void ArrivePull(uint32_t server, const PullCall& call, Fate fate, int holds,
                  const std::function<void(absl::StatusOr<wire::PullAnswer>)>& done);
  std::vector<Floats> Read(uint32_t server, const PullCall& call);
  Step Accept(uint32_t index, const PushCall& call);
  void Apply(uint32_t index, Step step, float learning_rate, const std::vector<Written>& all);
  void PlayOtherWorker();
  std::vector<Written> OthersPush(uint32_t server);

  const RowTrace& trace_;
  VirtualScheduler* const scheduler_;
  Random random_;
  const OnApplied on_applied_;
  bool closed_ = false;
  std::vector<Server> servers_;
};

}  // namespace thermocline

#endif  // THERMOCLINE_WORKER_ROWS_TESTING_FAKE_SERVERS_H_

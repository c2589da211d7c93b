// Several workers with one cache over all of them, from a seed, in virtual time: the real exchange,
// planners and merge, over streams that break, repeat and delay what they carry, with the smallest
// credit and buffers, ranks that pause and die, and servers that are away for a while. Every row
// that a rank reads, and what the servers hold in the end, is compared with a plain map that is
// trained without a cache.
#ifndef THERMOCLINE_TESTS_EXCHANGE_SHARED_ROWS_H_
#define THERMOCLINE_TESTS_EXCHANGE_SHARED_ROWS_H_

#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "tests/exchange/shared_rows_rank.h"

namespace thermocline::shared_rows {

// All ranks over their generations, the network between them, and what goes wrong.
class Job {
 public:
  explicit Job(const Case& of);

  // What went wrong first; "": nothing.
  std::string Run();
  int generations() const { return static_cast<int>(generation_); }

  const Case& of() const { return case_; }
  const Model& model() const { return model_; }
  Servers& servers() { return servers_; }
  VirtualScheduler& scheduler() { return scheduler_; }
  Random& random() { return random_; }
  void Wrong(const std::string& what) {
    if (wrong_.empty()) wrong_ = what;
  }
  void Carry(Rank* from, const exchange_action::OpenStream& open);
  void Carry(Rank* from, const exchange_action::SendChunk& send);
  void Carry(Rank* from, const exchange_action::SendReceipt& send);
  void BreakStreamsOf(const Rank* rank);

 private:
  struct Stream {
    uint64_t generation = 0;
    bool is_whole = true, delivers_late = false;
    int64_t late_us = 0;  // Then: by so much.
    int64_t forth_us = 0, back_us = 0;
    int frames_left = std::numeric_limits<int>::max();
    int receipts = 0;
  };
  using StreamId = std::tuple<uint64_t, uint32_t, uint32_t, uint64_t>;  // generation, from, to, nth

  void Begin(int64_t first_step);
  void Trouble();
  int64_t Delay() { return random_.Between(0, 3 * kMillisecond); }
  void Deliver(const std::shared_ptr<Stream>& stream, int64_t* direction_us, bool in_order,
               uint32_t to, std::function<void(Rank*)> frame);
  void CountFrame(const StreamId& id);
  void Break(const StreamId& id);
  Rank* Find(uint64_t generation, uint32_t rank) {
    return generation == generation_ ? ranks_[rank].get() : nullptr;
  }

  const Case case_;
  Random random_;
  VirtualScheduler scheduler_;
  const Model model_;
  Servers servers_;
  uint64_t generation_ = 0;
  std::vector<std::unique_ptr<Rank>> ranks_;  // Null: dead.
  std::map<StreamId, std::shared_ptr<Stream>> streams_;
  int breaks_left_, pauses_left_, deaths_left_, absences_left_;
  std::string wrong_;
};

}  // namespace thermocline::shared_rows

#endif  // THERMOCLINE_TESTS_EXCHANGE_SHARED_ROWS_H_

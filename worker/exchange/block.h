// What workers send each other: blocks, and what a receiver says about them.
#ifndef THERMOCLINE_WORKER_EXCHANGE_BLOCK_H_
#define THERMOCLINE_WORKER_EXCHANGE_BLOCK_H_

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "common/base/ids.h"
#include "common/base/uninitialized_vector.h"

namespace thermocline {

// In the order in which a step goes through them. The keys of a step come many steps ahead, its
// plans some.
enum class Phase : uint8_t { kKeys, kPlans, kRows, kGradients, kDenseGradients, kDenseWeights };
inline constexpr size_t kNumPhases = 6;
constexpr size_t IndexOf(Phase phase) { return static_cast<size_t>(phase); }
inline constexpr std::array<absl::string_view, kNumPhases> kPhaseNames = {
    "keys", "plans", "rows", "gradients", "dense gradients", "dense weights"};

// The phases that the steps of a job have: fixed at its start, the same for all ranks.
class PhaseSet {
 public:
  constexpr PhaseSet(std::initializer_list<Phase> phases) {
    for (const Phase phase : phases) bits_ |= 1u << static_cast<size_t>(phase);
  }
  constexpr bool Has(Phase phase) const { return (bits_ >> static_cast<size_t>(phase) & 1) != 0; }

 private:
  uint32_t bits_ = 0;
};
inline constexpr PhaseSet kAllPhases = {Phase::kKeys,           Phase::kPlans,
                                        Phase::kRows,           Phase::kGradients,
                                        Phase::kDenseGradients, Phase::kDenseWeights};
// Without rows to share. Then no rank says where its data end: all know it.
inline constexpr PhaseSet kDensePhases = {Phase::kDenseGradients, Phase::kDenseWeights};
// Where every rank holds the hot rows, and updates them with the gradients of all.
inline constexpr PhaseSet kHotPhases = {Phase::kGradients, Phase::kDenseGradients,
                                        Phase::kDenseWeights};

// Waits and sends go by this order: what an earlier step needs comes first.
struct BlockId {
  Step step;
  Phase phase = Phase::kKeys;

  friend bool operator==(BlockId a, BlockId b) { return a.step == b.step && a.phase == b.phase; }
  friend bool operator<(BlockId a, BlockId b) {
    return a.step == b.step ? a.phase < b.phase : a.step < b.step;
  }
};
inline std::string Describe(BlockId id) {
  return absl::StrCat("the ", kPhaseNames[static_cast<size_t>(id.phase)], " of step ",
                      id.step.value());
}

enum class BlockKind : uint8_t {
  kData,
  // Of phase kKeys, and the last block there:
  kEnd,     // the sender's data ends before this step
  kFailed,  // the sender can't read its data from this step on; the bytes say why
};

using BlockBytes = UninitializedVector<uint8_t>;

// What one rank sends another in one phase of one step: a function of generation, step, phase, and
// the two ranks. So it may be sent again.
struct Block {
  BlockKind kind = BlockKind::kData;
  std::shared_ptr<const BlockBytes> bytes;  // Not null.
};

// A piece of a block, as it travels.
struct BlockChunk {
  BlockId id;
  BlockKind kind = BlockKind::kData;
  uint32_t checksum = 0;     // CRC-32C of the whole block
  uint64_t block_bytes = 0;  // of the whole block
  uint64_t offset = 0;       // of `data` in it
  absl::Span<const uint8_t> data;
};

// What a receiver says of one sender's blocks. Both only rise, so a receipt that is lost, late or
// repeated harms nothing.
struct Receipt {
  // [phases] Blocks through this step are here, and need not be sent again.
  std::array<Step, kNumPhases> received;
  // [phases] Blocks through this step are taken: there is room for them.
  std::array<Step, kNumPhases> taken;

  // Says what both say: threads hand over receipts of a stream in any order.
  void Merge(const Receipt& other) {
    for (size_t p = 0; p < kNumPhases; ++p) {
      received[p] = std::max(received[p], other.received[p]);
      taken[p] = std::max(taken[p], other.taken[p]);
    }
  }
  friend bool operator==(const Receipt& a, const Receipt& b) {
    return a.received == b.received && a.taken == b.taken;
  }
};

struct ExchangeOptions {
  WorkerRank rank;
  uint32_t num_ranks = 1;
  Step start_step{0};  // The first step of every phase.
  PhaseSet phases = kAllPhases;
  // Steps ahead that the keys of a step are needed: with those of step x, step x - window_steps is
  // planned.
  int window_steps = 1;
  // [phases] Blocks of one sender that a receiver holds, from the first step on that it has not
  // released. At least 1.
  std::array<int, kNumPhases> credit_steps = {8, 4, 4, 4, 4, 4};
  // What is received or released may be said as late as that, in one receipt for several blocks and
  // phases; but while a sender still has half its credit.
  int64_t receipt_delay_us = 100'000;
  uint64_t max_block_bytes = uint64_t{1} << 30;
  size_t max_chunk_bytes = 512 << 10;
  int64_t min_backoff_us = 5'000;  // Before a broken stream is opened again; doubles.
  int64_t max_backoff_us = 1'000'000;
  int64_t complain_after_us = 20'000'000;  // Of a wait; and again whenever it has doubled.
};

}  // namespace thermocline

#endif  // THERMOCLINE_WORKER_EXCHANGE_BLOCK_H_

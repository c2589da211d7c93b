// Blocks, which workers send each other, and receipts, with which the receiver answers.
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

// The phases of a step, in the order in which a step goes through them. The keys of a step are sent
// many steps ahead, its plans a few.
enum class Phase : uint8_t { kKeys, kPlans, kRows, kGradients, kDenseGradients, kDenseWeights };
inline constexpr size_t kNumPhases = 6;
constexpr size_t IndexOf(Phase phase) { return static_cast<size_t>(phase); }
inline constexpr std::array<absl::string_view, kNumPhases> kPhaseNames = {
    "keys", "plans", "rows", "gradients", "dense gradients", "dense weights"};

// The phases that the steps of a job have. They are fixed at its start, and the same for all ranks.
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
// For ranks that share no rows. Then no rank says where its data end, since all know it.
inline constexpr PhaseSet kDensePhases = {Phase::kDenseGradients, Phase::kDenseWeights};
// For ranks that all hold the hot rows, and update them with the gradients of all.
inline constexpr PhaseSet kHotPhases = {Phase::kGradients, Phase::kDenseGradients,
                                        Phase::kDenseWeights};

// Names a block between two ranks. Waits and sends go by the order of ids, so that blocks of
// earlier steps come first.
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
  // These two are the last block of phase kKeys.
  kEnd,     // The sender's data end before this step.
  kFailed,  // The sender can't read its data from this step on; the bytes say why.
};

using BlockBytes = UninitializedVector<uint8_t>;

// The bytes that one rank sends another in one phase of one step. They are a function of
// generation, step, phase and the two ranks, so a block may be sent again.
struct Block {
  BlockKind kind = BlockKind::kData;
  std::shared_ptr<const BlockBytes> bytes;  // Not null.
};

// A piece of a block, as it is sent.
struct BlockChunk {
  BlockId id;
  BlockKind kind = BlockKind::kData;
  uint32_t checksum = 0;     // The CRC-32C of the whole block.
  uint64_t block_bytes = 0;  // The size of the whole block.
  uint64_t offset = 0;       // Where `data` begins in the block.
  absl::Span<const uint8_t> data;
};

// A receiver's answer to one sender. Steps only rise, so a receipt that is lost, late or repeated
// harms nothing.
struct Receipt {
  // [phases] Blocks through this step are here, and need not be sent again.
  std::array<Step, kNumPhases> received;
  // [phases] The receiver takes blocks through this step: it has room for them.
  std::array<Step, kNumPhases> taken;

  // Adds what `other` says, since threads hand over receipts of a stream in any order.
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
  // The keys of a step are needed this many steps ahead: the plan of step x needs the keys of step
  // x + window_steps.
  int window_steps = 1;
  // [phases] How many steps' blocks of one sender a receiver holds, counted from the first that it
  // has not released. At least 1.
  std::array<int, kNumPhases> credit_steps = {8, 4, 4, 4, 4, 4};
  // A receipt may wait this long, so that one serves several blocks and phases. It is sent earlier
  // when the sender has less than half of its credit.
  int64_t receipt_delay_us = 100'000;
  uint64_t max_block_bytes = uint64_t{1} << 30;
  size_t max_chunk_bytes = 512 << 10;
  int64_t min_backoff_us = 5'000;  // Before a broken stream is opened again; it doubles each time.
  int64_t max_backoff_us = 1'000'000;
  int64_t complain_after_us = 20'000'000;  // After so long a wait, and whenever it has doubled.
};

}  // namespace thermocline

#endif  // THERMOCLINE_WORKER_EXCHANGE_BLOCK_H_

// The two ends of a simulated job (shared_rows.h) that have no cache: the model that it must have
// in the end, and its servers.
#ifndef THERMOCLINE_TESTS_EXCHANGE_SHARED_ROWS_MODEL_H_
#define THERMOCLINE_TESTS_EXCHANGE_SHARED_ROWS_MODEL_H_

#include <algorithm>
#include <cstdint>
#include <functional>
#include <map>
#include <utility>
#include <vector>

#include "common/base/hash.h"
#include "common/math/gradient_merge.h"
#include "gtest/gtest.h"
#include "tests/exchange/shared_rows_case.h"
#include "tests/testing/virtual_scheduler.h"

namespace thermocline::shared_rows {

// The model without a cache: every state of a row, by step.
class Model {
 public:
  explicit Model(const Case& of) {
    rows_[-1];
    for (int64_t step = 0; step < of.num_steps; ++step) {
      std::map<Key, Row> rows = rows_[step - 1], sums;
      for (uint32_t rank = 0; rank < of.num_ranks; ++rank) {
        for (const Key key : KeysOf(of, rank, step)) {
          const Row gradient = GradientOf(of, After(key, step - 1), key, rank, step);
          const bool is_first = sums.count(key) == 0;
          MergeGradient(is_first, gradient.data(), kDim, sums[key].data());
        }
      }
      for (const auto& [key, sum] : sums) {
        Update(sum, &rows.emplace(key, InitialRow(key)).first->second);
      }
      rows_[step] = std::move(rows);
    }
  }
  Row After(Key key, int64_t step) const {
    const auto& rows = rows_.at(step);
    const auto found = rows.find(key);
    return found == rows.end() ? InitialRow(key) : found->second;
  }
  const std::map<Key, Row>& RowsAfter(int64_t step) const { return rows_.at(step); }

 private:
  std::map<int64_t, std::map<Key, Row>> rows_;
};

// What a rank pushes in a step: gradients of rows that it does not hold, and whole rows.
struct Push {
  std::vector<std::pair<Key, Row>> gradients, assigned;
};

// All servers as one: a step is applied when every rank has pushed it, in rank order.
class Servers {
 public:
  Servers(const Case& of, VirtualScheduler* scheduler, Random* random)
      : case_(of), scheduler_(*scheduler), random_(*random), pushed_(of.num_ranks, -1) {}

  void TakePush(uint32_t rank, int64_t step, Push push) {
    ASSERT_EQ(step, pushed_[rank] + 1);
    pushed_[rank] = step;
    pending_[step][rank] = std::move(push);
    while (*std::min_element(pushed_.begin(), pushed_.end()) > applied_) ApplyNext();
    std::vector<Waiting> waiting = std::exchange(waiting_, {});
    for (Waiting& each : waiting) When(each.step, std::move(each.then));
  }
  // Runs `then` once `step` is applied and the servers are there.
  void When(int64_t step, std::function<void()> then) {
    if (applied_ < step) return waiting_.push_back({step, std::move(then)});
    const int64_t until_us = std::max<int64_t>(0, away_until_us_ - scheduler_.NowMicros());
    scheduler_.RunAfter(until_us + random_.Between(0, 2 * kMillisecond), std::move(then));
  }
  void GoAway(int64_t for_us) { away_until_us_ = scheduler_.NowMicros() + for_us; }
  Row Read(Key key) const {
    const auto found = rows_.find(key);
    return found == rows_.end() ? InitialRow(key) : found->second;
  }
  // Keeps the rows as a checkpoint; the last one kept is what GoBack returns to.
  void Checkpoint() {
    base_ = rows_;
    base_step_ = applied_;
  }
  int64_t GoBack() {
    rows_ = base_;
    applied_ = base_step_;
    std::fill(pushed_.begin(), pushed_.end(), applied_);
    pending_.clear();
    waiting_.clear();
    return applied_ + 1;
  }
  int64_t applied() const { return applied_; }
  int64_t pushed(uint32_t rank) const { return pushed_[rank]; }
  const std::map<Key, Row>& rows() const { return rows_; }

 private:
  struct Waiting {
    int64_t step;
    std::function<void()> then;
  };

  void ApplyNext() {
    ++applied_;
    std::map<Key, Row> sums;
    for (const auto& [rank, push] : pending_[applied_]) {
      for (const auto& [key, gradient] : push.gradients) {
        const bool is_first = sums.count(key) == 0;
        MergeGradient(is_first, gradient.data(), kDim, sums[key].data());
      }
    }
    for (const auto& [key, sum] : sums) {
      Update(sum, &rows_.emplace(key, InitialRow(key)).first->second);
    }
    for (const auto& [rank, push] : pending_[applied_]) {
      for (const auto& [key, row] : push.assigned) rows_[key] = row;
    }
    pending_.erase(applied_);
    if ((applied_ + 1) % case_.write_back_every == 0) Checkpoint();
  }

  const Case& case_;
  VirtualScheduler& scheduler_;
  Random& random_;
  std::vector<int64_t> pushed_;  // [num_ranks] The last step.
  std::map<int64_t, std::map<uint32_t, Push>> pending_;
  std::vector<Waiting> waiting_;
  std::map<Key, Row> rows_, base_;
  int64_t applied_ = -1, base_step_ = -1;
  int64_t away_until_us_ = 0;
};

}  // namespace thermocline::shared_rows

#endif  // THERMOCLINE_TESTS_EXCHANGE_SHARED_ROWS_MODEL_H_

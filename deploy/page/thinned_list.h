// A list of at most so many items, evenly over all that were added.
#ifndef THERMOCLINE_DEPLOY_PAGE_THINNED_LIST_H_
#define THERMOCLINE_DEPLOY_PAGE_THINNED_LIST_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

namespace thermocline {

// Keeps the first item, every 2^k-th after it, and the last. Not thread-safe.
template <typename Item>
class ThinnedList {
 public:
  // REQUIRES: at_most >= 2
  explicit ThinnedList(size_t at_most) : at_most_(at_most) {}

  void Add(Item item) {
    if (count_++ % every_ == 0) {
      kept_.push_back(std::move(item));
      last_.reset();
    } else {
      last_ = std::move(item);
    }
    if (kept_.size() < at_most_) return;
    for (size_t i = 0; 2 * i < kept_.size(); ++i) kept_[i] = kept_[2 * i];
    if (kept_.size() % 2 == 0) last_ = kept_.back();
    kept_.resize((kept_.size() + 1) / 2);
    every_ *= 2;
  }

  // Takes back the last items, those for which `is_lost` is true.
  template <typename IsLost>
  void TakeBack(const IsLost& is_lost) {
    if (last_.has_value() && is_lost(*last_)) last_.reset();
    while (!kept_.empty() && is_lost(kept_.back())) kept_.pop_back();
    // What was not kept is not known. The next item is kept.
    if (!last_.has_value()) count_ = std::min<uint64_t>(count_, kept_.size() * every_);
  }

  // At most `at_most` items, oldest first.
  std::vector<Item> Items() const {
    std::vector<Item> items = kept_;
    if (last_.has_value()) items.push_back(*last_);
    return items;
  }
  const Item* last() const {
    if (last_.has_value()) return &*last_;
    return kept_.empty() ? nullptr : &kept_.back();
  }
  uint64_t count() const { return count_; }  // How many were added, about, after items were lost.
  bool empty() const { return kept_.empty(); }

 private:
  size_t at_most_;
  uint64_t every_ = 1;
  uint64_t count_ = 0;
  std::vector<Item> kept_;
  std::optional<Item> last_;  // Where it is not the last of kept_.
};

}  // namespace thermocline

#endif  // THERMOCLINE_DEPLOY_PAGE_THINNED_LIST_H_

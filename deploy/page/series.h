// Figures over the steps of a run, thinned while they are read: memory does not grow with the run.
#ifndef THERMOCLINE_DEPLOY_PAGE_SERIES_H_
#define THERMOCLINE_DEPLOY_PAGE_SERIES_H_

#include <cstddef>
#include <cstdint>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace thermocline {

// A finite number as the document has it: six significant digits, which is enough to draw; null
// where there is none.
nlohmann::ordered_json ShortNumber(std::optional<double> value);

// A series has a point for each `lines_per_point` lines, which is a power of two. At kMaxPoints
// points neighbours are merged in pairs, so that it has 1,000 to 2,000 of them from then on. A
// point keeps the mean of each figure and, where asked, its extremes. Points that have all their
// lines change only by a merge. Not thread-safe.
class Series {
 public:
  static constexpr size_t kMaxPoints = 2000;
  // Figures beyond it are left out.
  static constexpr size_t kMaxFigures = 64;

  // Where a line stands on the axes.
  struct Place {
    double step = 0;  // How many steps the job had made.
    double t = 0;     // Seconds.
    std::optional<double> samples;
  };

  // Begins a line; a point stands where its last line does.
  void Begin(const Place& at);
  // Adds a figure of the line. One that has no finite value is left out.
  // REQUIRES: a line has begun
  void Put(absl::string_view name, std::optional<double> value, bool keeps_extremes);

  // The first point whose last step is beyond `step`; size() if there is none.
  size_t FirstBeyond(double step) const;
  // Drops the points from `size` on.
  void Truncate(size_t size);

  size_t size() const { return points_.size(); }
  bool empty() const { return points_.empty(); }
  uint64_t lines_per_point() const { return lines_per_point_; }
  const Place& place(size_t point) const { return points_[point].at; }
  std::optional<double> Mean(size_t point, absl::string_view name) const;

  // {"lines_per_point", columns "step", "t", "samples", and by figure "mean", "min", "max"}; null
  // where no line of a point has the figure. "samples" is left out where no line has them; "min"
  // and "max" while a point is one line.
  nlohmann::ordered_json ToJson() const;

 private:
  struct Figure {
    std::string name;
    bool keeps_extremes = false;
  };
  struct Sums {
    uint64_t count = 0;
    double sum = 0;
    double min = std::numeric_limits<double>::infinity();
    double max = -std::numeric_limits<double>::infinity();
  };
  struct Point {
    Place at;
    std::vector<Sums> figures;  // By the index in figures_; may be shorter.
  };

  void MergePairs();
  std::optional<size_t> IndexOf(absl::string_view name) const;

  uint64_t lines_per_point_ = 1;
  uint64_t lines_of_last_ = 0;  // How many lines the last point has.
  std::vector<Figure> figures_;
  std::vector<Point> points_;
};

}  // namespace thermocline

#endif  // THERMOCLINE_DEPLOY_PAGE_SERIES_H_

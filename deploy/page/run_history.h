// What metrics.jsonl says of a run, thinned: its size does not grow with the run.
#ifndef THERMOCLINE_DEPLOY_PAGE_RUN_HISTORY_H_
#define THERMOCLINE_DEPLOY_PAGE_RUN_HISTORY_H_

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "deploy/page/series.h"
#include "deploy/page/thinned_list.h"

namespace thermocline {

// The last line of progress, as it was written.
struct LastProgress {
  double step = 0;
  std::optional<double> samples, samples_per_s, fraction, loss;
};

// Times are seconds in which the job ran, over all its launches; the pauses between these are left
// out. Steps are counts: an evaluation after step 19 stands at 20.
struct RunHistory {
  // A line of events, evaluations or checkpoints as it was written, with its place.
  struct Row {
    double step = 0, t = 0;
    nlohmann::ordered_json line;
  };
  struct Mark {
    double t = 0;
    std::string kind, text;
  };
  struct Span {
    double begin = 0, end = 0;
    std::string kind, text;
  };
  // One line of the time line: what happened to one process, host or part of the job.
  struct Lane {
    ThinnedList<Mark> marks{kMaxMarks};
    ThinnedList<Span> spans{kMaxMarks};
    std::optional<Span> open;  // The span that has not ended.
  };
  struct Launch {
    double begin = 0, end = 0;
    std::optional<double> began_at;  // Unix seconds; nullopt: not known.
    std::string host, version;       // Where its controller ran, and which; "": not known.
    std::string status;              // "": no last line.
    std::string reason;
    bool has_summary = false;  // summary.json is of this launch.
    bool has_trained = false;  // A line came that begins nothing.
    // Where each generation began: time and step. The first, and the last ones.
    std::vector<std::pair<double, double>> generations;
  };

  static constexpr size_t kMaxRows = 1000;   // Evaluations; as many checkpoints.
  static constexpr size_t kMaxMarks = 200;   // In one lane.
  static constexpr size_t kMaxLanes = 2000;  // Kept; the document has fewer.
  static constexpr size_t kMaxLaunches = 100;
  static constexpr size_t kMaxGenerations = 200;  // In one launch.
  static constexpr size_t kMaxFirstEvents = 100, kMaxLastEvents = 400;
  static constexpr size_t kMaxKinds = 64;
  static constexpr size_t kMaxLost = 20;  // Rollbacks whose lost steps are kept.
  static constexpr size_t kMaxLostPoints = 100;

  Series progress;  // What the first worker reports.
  Series workers;   // Sums over all workers, where there are several.
  ThinnedList<Row> evaluations{kMaxRows};
  ThinnedList<Row> checkpoints{kMaxRows};
  std::optional<Row> best;  // The best evaluation so far.
  uint64_t num_checkpoints = 0;
  std::deque<Launch> launches;
  uint64_t num_launches = 0;
  std::map<std::string, Lane> lanes;  // By name.
  uint64_t lanes_left_out = 0;
  std::vector<Mark> first_events;
  std::deque<Mark> last_events;
  std::map<std::string, uint64_t> event_counts;  // By kind.
  // Steps that a rollback or a resume took back: {"from", "to", "t0", "t1", columns "step", "t",
  // "samples", "loss", "samples_per_s"}.
  std::deque<nlohmann::ordered_json> lost;
  uint64_t drops = 0;  // How often points were dropped.

  double t = 0;  // When the last line was written.
  std::optional<LastProgress> last_progress;
  nlohmann::ordered_json limit;   // The last line of a limit that was reached; null: none.
  nlohmann::ordered_json pack;    // What was found about hot rows; null: nothing.
  std::string phase;              // What it does, where that is no training.
  uint64_t num_lines = 0;         // Whole lines that were read.
  uint64_t bad_lines = 0;         // Lines that are no events.
  bool ends_within_line = false;  // The file has more behind its last whole line.
};

// An event as a sentence for users. `kind`: its "event".
std::string DescribeEvent(const std::string& kind, const nlohmann::ordered_json& line);

// Reads a run's metrics.jsonl into its history, from the begin of the file or from where it stopped
// before. Not thread-safe.
class HistoryReader {
 public:
  HistoryReader();
  ~HistoryReader();
  HistoryReader(HistoryReader&&) noexcept;
  HistoryReader& operator=(HistoryReader&&) noexcept;

  // Reads all whole lines that are there and were not read before. A line that is still being
  // written waits for the next call. A file that has become shorter is read anew. False: it can't
  // be read.
  bool Follow(const std::string& path);
  // Takes one line, without its end. What is no event is counted.
  void TakeLine(absl::string_view line);

  const RunHistory& history() const { return history_; }

 private:
  using Json = nlohmann::ordered_json;
  // Nearly all lines of a long run are those of progress: they are read by a parser that is many
  // times as fast, which gives numbers alone.
  class FastParser;

  bool TakeEvent(const Json& line);
  // False: the line is none of progress.
  bool TakeFast(absl::string_view line);
  bool BeginsLaunch(const std::string& kind, double wall_s) const;
  void BeginLaunch();
  // The launch that a line is of, which may begin with it; it lasts until then.
  RunHistory::Launch& LaunchOf(const std::string& kind, double wall_s);
  void TakeStart(const Json& line);
  void TakeProgress(const FastParser& line);
  void TakeWorkers(const Json& line);
  void TakeEvaluation(const Json& line);
  void TakeDecision(const Json& line);
  void TakeCheckpoint(const Json& line);
  void TakeRollback(const std::string& kind, const Json& line);
  void TakePhase(const Json& line);
  void TakeSlowHost(const Json& line);
  void TakeEnd(const Json& line);
  void DropBeyond(double step);
  void KeepLost(size_t first, double step);
  void List(const std::string& kind, const Json& line);

  // nullptr: there are too many.
  RunHistory::Lane* LaneOf(const std::string& name);
  void AddMark(const std::string& lane, const char* kind, const std::string& text);
  void CloseSpan(RunHistory::Lane* lane);

  RunHistory history_;
  int64_t offset_ = 0;  // In the file: behind the last whole line.
  double base_ = 0;     // The time at which the launch began.
  std::unique_ptr<FastParser> fast_;
};

}  // namespace thermocline

#endif  // THERMOCLINE_DEPLOY_PAGE_RUN_HISTORY_H_

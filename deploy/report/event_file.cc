#include "deploy/report/event_file.h"

#include <unistd.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <optional>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "common/base/hash.h"
#include "common/base/status_macros.h"
#include "deploy/report/summary.h"

namespace thermocline {
namespace {

using Json = nlohmann::ordered_json;
using tensorboard::Event;
using tensorboard::Summary;

// A figure of a line, and its tag. `field` may name a field of an object: "cache/hit_rate". Of what
// a line says of each of several tasks, the tag is followed by '/' and the task's label.
struct Scalar {
  const char* event;
  const char* field;
  const char* tag;
};
constexpr Scalar kScalars[] = {
    {"progress", "loss", "train/loss"},
    {"progress", "auc", "train/auc"},
    {"progress", "learning_rate", "train/learning_rate"},
    {"progress", "samples", "train/samples"},
    {"progress", "samples_per_s", "perf/samples_per_second"},
    {"progress", "wait_share", "perf/wait_share"},
    {"progress", "bytes_pulled_per_step", "bytes/pulled_per_step"},
    {"progress", "bytes_pushed_per_step", "bytes/pushed_per_step"},
    {"progress", "bytes_to_device_per_step", "bytes/to_device_per_step"},
    {"progress", "bytes_from_device_per_step", "bytes/from_device_per_step"},
    {"progress", "cache/hit_rate", "cache/hit_rate"},
    {"progress", "cache/bypass_rate", "cache/bypass_rate"},
    {"progress", "cache/rows_held", "cache/rows_held"},
    {"workers", "bytes_pulled_per_step", "workers/bytes_pulled_per_step"},
    {"workers", "bytes_pushed_per_step", "workers/bytes_pushed_per_step"},
    {"workers", "bytes_exchanged_per_step", "workers/bytes_exchanged_per_step"},
    {"workers", "hit_rate", "workers/hit_rate"},
    {"workers", "slowest_share", "workers/slowest_share"},
    {"eval", "auc", "eval/auc"},
    {"eval", "logloss", "eval/logloss"},
    {"eval", "gauc", "eval/gauc"},
    {"eval", "normalized_entropy", "eval/normalized_entropy"},
    {"eval", "calibration", "eval/calibration"},
    {"eval", "seconds", "eval/seconds"},
    {"checkpoint", "bytes", "checkpoint/bytes"},
    {"checkpoint", "write_s", "checkpoint/write_seconds"},
    {"checkpoint", "pause_s", "checkpoint/pause_seconds"},
};
// The tag of a stage is this and the stage's name: "stage_us/wait for rows".
constexpr char kStages[] = "stages_us_per_step", kStageTag[] = "stage_us/";
// The tag of the script's own metric is this and its name, which may be that of one of ours.
constexpr char kOwnTag[] = "eval/own/";

std::optional<double> FigureAt(const Json& line, absl::string_view field) {
  const Json* json = &line;
  const std::vector<std::string> path = absl::StrSplit(field, '/');
  for (size_t i = 0; i + 1 < path.size(); ++i) {
    const auto found = json->find(path[i]);
    if (found == json->end() || !found->is_object()) return std::nullopt;
    json = &*found;
  }
  const std::optional<double> figure = NumberAt(*json, path.back().c_str());
  return figure && std::isfinite(*figure) ? figure : std::nullopt;
}

void Add(const std::string& tag, double figure, Summary* summary) {
  Summary::Value* value = summary->add_value();
  value->set_tag(tag);
  value->set_simple_value(static_cast<float>(figure));
}

// TFRecord's mask: a CRC of bytes that hold a CRC of their own would often be the same.
uint32_t MaskedCrc(absl::string_view bytes) {
  const uint32_t crc = Crc32c(bytes.data(), bytes.size());
  return ((crc >> 15) | (crc << 17)) + 0xa282ead8u;
}

template <typename Integer>
std::string LittleEndian(Integer value) {
  std::string bytes(sizeof(value), '\0');
  std::memcpy(&bytes[0], &value, sizeof(value));
  return bytes;
}

Event EventAt(absl::Time now, int64_t steps) {
  Event event;
  event.set_wall_time(absl::ToDoubleSeconds(now - absl::UnixEpoch()));
  event.set_step(steps);
  return event;
}

}  // namespace

absl::StatusOr<std::unique_ptr<EventFile>> EventFile::Create(const std::string& directory,
                                                             absl::string_view host, absl::Time now,
                                                             absl::string_view own_metric) {
  const std::string path =
      absl::StrCat(directory, "/events.out.tfevents.", absl::ToUnixSeconds(now), ".",
                   absl::StrReplaceAll(host, {{"/", "_"}}), ".", getpid(), ".0");
  ASSIGN_OR_RETURN(std::unique_ptr<AppendedFile> opened, AppendedFile::Open(path));
  std::unique_ptr<EventFile> file(new EventFile(std::move(opened), own_metric));
  Event version = EventAt(now, 0);
  version.set_file_version("brain.Event:2");
  RETURN_IF_ERROR(file->Write(version));
  return file;
}

// A block of code in Markdown: every line is indented.
absl::Status EventFile::WriteJob(absl::string_view text, absl::Time now) {
  Event event = EventAt(now, 0);
  Summary::Value* value = event.mutable_summary()->add_value();
  value->set_tag("job");
  value->mutable_metadata()->mutable_plugin_data()->set_plugin_name("text");
  tensorboard::Tensor* tensor = value->mutable_tensor();
  tensor->set_dtype(tensorboard::Tensor::DT_STRING);
  tensor->mutable_tensor_shape()->add_dim()->set_size(1);
  tensor->add_string_val(absl::StrCat("    ", absl::StrReplaceAll(text, {{"\n", "\n    "}})));
  return Write(event);
}

absl::Status EventFile::Append(const Json& line, absl::Time now) {
  const std::string name = TextAt(line, "event");
  const std::optional<double> step = NumberAt(line, "step");
  if (!step.has_value()) return absl::OkStatus();
  // Lines of steps have the number of the step; these have the number of steps that were trained
  // before it.
  const bool counts_steps =
      name == "progress" || name == "workers" || name == "resume" || name == "rollback";
  Event event = EventAt(now, static_cast<int64_t>(*step) + (counts_steps ? 0 : 1));
  if (name == "resume" || name == "rollback") {
    event.set_step(event.step() + 1);  // The figures behind the last step that is kept stay.
    event.mutable_session_log()->set_status(tensorboard::SessionLog::START);
    return Write(event);
  }
  Summary* summary = event.mutable_summary();
  const auto add_all = [&](const Json& figures, const std::string& tag_end) {
    for (const Scalar& scalar : kScalars) {
      if (name != scalar.event) continue;
      const auto figure = FigureAt(figures, scalar.field);
      if (figure) Add(scalar.tag + tag_end, *figure, summary);
    }
  };
  add_all(line, "");
  ForEachTask(line,
              [&](const std::string& label, const Json& task) { add_all(task, "/" + label); });
  if (const auto own = FigureAt(line, "own_metric");
      own && name == "eval" && !own_metric_.empty()) {
    Add(absl::StrCat(kOwnTag, own_metric_), *own, summary);
  }
  const auto stages = line.find(kStages);
  if (name == "progress" && stages != line.end() && stages->is_object()) {
    for (const auto& [stage, mean] : stages->items()) {
      if (mean.is_number() && std::isfinite(mean.get<double>())) {
        Add(absl::StrCat(kStageTag, stage), mean.get<double>(), summary);
      }
    }
  }
  return summary->value().empty() ? absl::OkStatus() : Write(event);
}

absl::Status EventFile::Write(const Event& event) {
  const std::string bytes = event.SerializeAsString();
  const std::string length = LittleEndian(uint64_t{bytes.size()});
  return file_->Append(
      absl::StrCat(length, LittleEndian(MaskedCrc(length)), bytes, LittleEndian(MaskedCrc(bytes))));
}

}  // namespace thermocline

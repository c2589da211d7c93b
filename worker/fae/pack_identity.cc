#include "worker/fae/pack_identity.h"

#include <google/protobuf/descriptor.h>
#include <google/protobuf/text_format.h>
#include <sys/stat.h>

#include <algorithm>
#include <map>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/time/time.h"
#include "common/base/status_macros.h"
#include "common/data/data_identity.h"
#include "common/disk/file_list.h"
#include "common/job/job_data.h"
#include "common/job/model_memory.h"
#include "worker/data/column_values.h"
#include "worker/data/data_files.h"

namespace thermocline {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::TextFormat;

constexpr char kSuffix[] = ".pack";
constexpr char kUnfinishedSuffix[] = ".pack.tmp";

// Bytes at the beginning and the end of a data file that tell it from others.
constexpr int64_t kSampleBytes = 4096;

void AddLine(absl::string_view name, absl::string_view value, std::string* lines) {
  // A line end in a value would make two lines of one.
  absl::StrAppend(lines, name, ": ", absl::StrReplaceAll(value, {{"\n", "\\n"}}), "\n");
}

// A line for every value that is set in `message`.
void AddFields(const std::string& path, const Message& message, std::string* lines) {
  std::vector<const FieldDescriptor*> fields;
  message.GetReflection()->ListFields(message, &fields);
  for (const FieldDescriptor* field : fields) {
    const int n = field->is_repeated() ? message.GetReflection()->FieldSize(message, field) : 1;
    for (int i = 0; i < n; ++i) {
      std::string name = path.empty() ? field->name() : absl::StrCat(path, ".", field->name());
      if (field->is_repeated()) absl::StrAppend(&name, "[", i, "]");
      if (field->cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE) {
        const Message& inner = field->is_repeated()
                                   ? message.GetReflection()->GetRepeatedMessage(message, field, i)
                                   : message.GetReflection()->GetMessage(message, field);
        // So that a message without fields is not the same as none.
        AddLine(name, "{}", lines);
        AddFields(name, inner, lines);
        continue;
      }
      std::string value;
      TextFormat::PrintFieldValueToString(message, field, field->is_repeated() ? i : -1, &value);
      AddLine(name, value, lines);
    }
  }
}

std::vector<std::string> NpyFilesOf(const Job& job, const Data& data) {
  std::vector<std::string> parts = {"dense", "sparse", "labels"}, paths;
  for (const std::string& part : NpyParts(job)) {
    if (std::find(parts.begin(), parts.end(), part) == parts.end()) parts.push_back(part);
  }
  for (const std::string& part : parts) {
    std::string path = absl::StrCat(data.train().path(0), "/train_", part, ".npy");
    struct stat info;
    if (stat(path.c_str(), &info) == 0) paths.push_back(std::move(path));
  }
  return paths;
}

absl::Status AddFile(const std::string& path, ObjectStore* store, PackIdentity* identity) {
  if (IsObjectPath(path)) {
    ASSIGN_OR_RETURN(const FileIdentity object, IdentifyFile(path, store, /*end_bytes=*/0));
    AddLine(path, absl::StrCat(*object.bytes, " bytes, tag ", object.tag), &identity->data);
    return absl::OkStatus();
  }
  ASSIGN_OR_RETURN(const FileIdentity file, IdentifyFile(path, nullptr, kSampleBytes));
  if (!file.bytes.has_value()) {
    return absl::InvalidArgumentError(
        absl::StrCat(path,
                     ": is no regular file, so a later run could not tell whether its hot "
                     "rows are still those of the data"));
  }
  AddLine(path,
          absl::StrCat(*file.bytes, " bytes, checksums ", absl::Hex(file.head_crc, absl::kZeroPad8),
                       " ", absl::Hex(file.tail_crc, absl::kZeroPad8)),
          &identity->data);
  // To the nanosecond, since a file may be written twice in a second.
  AddLine(path,
          absl::StrCat("modified at ", absl::FormatTime("%Y-%m-%d %H:%M:%E9S UTC",
                                                        absl::FromUnixNanos(file.modified_ns),
                                                        absl::UTCTimeZone())),
          &identity->times);
  return absl::OkStatus();
}

std::map<std::string, std::string> LinesOf(const std::string& text) {
  std::map<std::string, std::string> lines;
  for (const absl::string_view line : absl::StrSplit(text, '\n', absl::SkipEmpty())) {
    const std::pair<std::string, std::string> parts =
        absl::StrSplit(line, absl::MaxSplits(": ", 1));
    lines[parts.first] = parts.second;
  }
  return lines;
}

}  // namespace

const std::string& HotBudget(const Job& job) {
  return WantsBatches(job) ? job.fae().budget() : job.cache().budget();
}

int64_t DeviceRowBytes(const TableLayout& table) {
  return DeviceRowFloats(table.row_floats()) * static_cast<int64_t>(sizeof(float));
}

std::string IdentifyJob(const Job& job) {
  Job part;
  *part.mutable_data() = DescribeData(job.data());
  part.mutable_data()->clear_read_ahead_batches();
  part.mutable_data()->clear_parser_threads();
  part.mutable_data()->clear_s3();
  part.mutable_data()->clear_test();
  *part.mutable_feature() = job.feature();
  *part.mutable_sequence() = job.sequence();
  *part.mutable_calibration() = job.calibration();
  part.mutable_calibration()->clear_directory();
  if (WantsBatches(job)) {
    part.mutable_fae()->set_budget(job.fae().budget());
  } else {
    part.mutable_cache()->set_budget(job.cache().budget());
    part.mutable_cache()->set_policy(Cache::STATIC);
  }
  // The batch size counts for a static cache, too, whose budget also has the rows of a batch.
  part.mutable_train()->set_batch_size(job.train().batch_size());
  std::string lines;
  AddFields("", part, &lines);
  if (!job.sequence().empty()) {
    int number = 0;
    for (const FeatureSpec& feature : ResolveTables(job).features) {
      AddLine(absl::StrCat("lookups ", number++), feature.name, &lines);
    }
  }
  // It decides which rows are the sample.
  if (job.calibration().sample_share() < 1) AddLine("seed", absl::StrCat(job.seed()), &lines);
  const std::vector<std::string> labels = LearnedLabels(job);
  if (labels != std::vector<std::string>{LabelColumns(job)[0]}) {
    AddLine("labels", absl::StrJoin(labels, ", "), &lines);
  }
  AddLine("data.test", job.data().has_test() || !job.data().test_path().empty() ? "set" : "none",
          &lines);
  const std::vector<TableLayout> tables = ResolveTables(job).sparse;
  for (size_t t = 0; t < tables.size(); ++t) {
    AddLine(absl::StrCat("table ", t),
            absl::StrCat(tables[t].name, ", ", DeviceRowBytes(tables[t]), " bytes a row",
                         MayHold(tables[t]) ? "" : ", which servers decide on"),
            &lines);
  }
  return lines;
}

absl::Status IdentifyData(const Job& job, PackIdentity* identity) {
  const Data data = DescribeData(job.data());
  FoundFiles found;
  if (data.train().has_npy()) {
    found.train = NpyFilesOf(job, data);
  } else {
    ASSIGN_OR_RETURN(found, FindFiles(job, data));
  }
  identity->data.clear();
  identity->times.clear();
  for (const std::string& path : found.train) {
    RETURN_IF_ERROR(AddFile(path, found.store.get(), identity));
  }
  return absl::OkStatus();
}

void FillPackDirectory(const std::string& job_file, Job* job) {
  if (!CountsHotRows(*job) || !job->calibration().directory().empty()) return;
  const size_t slash = job_file.rfind('/');
  job->mutable_calibration()->set_directory(
      absl::StrCat(slash == job_file.npos ? "." : job_file.substr(0, slash), "/hot"));
}

std::string PackPath(const Job& job) {
  return absl::StrCat(job.calibration().directory(), "/",
                      absl::Hex(HashText(IdentifyJob(job)), absl::kZeroPad16), kSuffix);
}

absl::StatusOr<std::vector<std::string>> ListPacks(Disk* disk, const std::string& directory) {
  auto names = disk->List(directory);
  if (absl::IsNotFound(names.status())) return std::vector<std::string>();
  RETURN_IF_ERROR(names.status());
  const auto is_other = [](const std::string& name) { return !absl::EndsWith(name, kSuffix); };
  names->erase(std::remove_if(names->begin(), names->end(), is_other), names->end());
  return *std::move(names);
}

bool IsUnfinishedPack(const std::string& name) { return absl::EndsWith(name, kUnfinishedSuffix); }

std::string DescribeDifference(const std::string& now, const std::string& was) {
  constexpr size_t kMost = 2;
  const std::map<std::string, std::string> old = LinesOf(was);
  std::map<std::string, std::string> all = old;
  const std::map<std::string, std::string> current = LinesOf(now);
  all.insert(current.begin(), current.end());
  std::vector<std::string> differences;
  for (const auto& line : all) {
    const auto a = current.find(line.first), b = old.find(line.first);
    if (a != current.end() && b != old.end() && a->second == b->second) continue;
    differences.push_back(absl::StrCat(
        line.first, a == current.end() ? " is not set" : absl::StrCat(" is ", a->second),
        b == old.end() ? ", was not set" : absl::StrCat(", was ", b->second)));
  }
  if (differences.size() <= kMost) return absl::StrJoin(differences, "; ");
  const size_t more = differences.size() - kMost;
  differences.resize(kMost);
  return absl::StrCat(absl::StrJoin(differences, "; "), "; and ", more, " more");
}

}  // namespace thermocline

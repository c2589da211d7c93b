#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/status_macros.h"
#include "common/base/text.h"
#include "common/job/job_data.h"
#include "common/job/job_source.h"

namespace thermocline {
namespace {

constexpr uint64_t kMaxReadAheadBatches = 1024;
constexpr uint64_t kMaxParserThreads = 256;
constexpr uint64_t kMaxSequenceLength = 1 << 20;
// A worker holds a block's text.
constexpr uint64_t kMaxShuffleRows = 1 << 24;

class DataValidator {
 public:
  DataValidator(const Job& job, const JobSource& source)
      : job_(job), source_(source), data_(job.data()) {}

  absl::Status CheckData() const {
    RETURN_IF_ERROR(data_.has_train() ? CheckLongForm() : CheckShortForm());
    RETURN_IF_ERROR(CheckRange(source_, "data.num_dense", data_.num_dense(), 0, kMaxColumns));
    RETURN_IF_ERROR(
        CheckRange(source_, "data.num_categorical", data_.num_categorical(), 0, kMaxColumns));
    if (data_.num_dense() == 0 && data_.num_categorical() == 0) {
      if (data_.has_train() && !IsNpy(data_)) {
        return source_.Error("feature", "is missing: columns are features by its stanzas");
      }
      return source_.Error("data.num_dense",
                           "is 0, and data.num_categorical as well: there is nothing to train on");
    }
    if (!data_.weight().empty()) {
      if (IsNpy(data_)) return source_.Error("data.weight", "is for text; npy has no such column");
      RETURN_IF_ERROR(CheckColumn("data.weight", data_.weight()));
    }
    if (!data_.group().empty()) RETURN_IF_ERROR(CheckColumn("data.group", data_.group()));
    if (data_.has_shuffle()) {
      if (IsNpy(data_)) return source_.Error("data.shuffle", "is for text; npy is read in order");
      RETURN_IF_ERROR(CheckRange(source_, "data.shuffle.block_rows", data_.shuffle().block_rows(),
                                 2, kMaxShuffleRows));
    }
    RETURN_IF_ERROR(CheckTasks());
    const uint64_t threads = data_.has_parser_threads() ? data_.parser_threads() : 1;
    RETURN_IF_ERROR(CheckRange(source_, "data.parser_threads", threads, 1, kMaxParserThreads));
    return CheckRange(source_, "data.read_ahead_batches", data_.read_ahead_batches(), 1,
                      kMaxReadAheadBatches);
  }

 private:
  absl::Status CheckShare(absl::string_view path, double share) const {
    if (share >= 0 && share < 1) return absl::OkStatus();
    return source_.Error(path, absl::StrCat("is ", share, "; it must be in [0, 1)"));
  }

  absl::Status CheckShortForm() const {
    if (data_.format() == Data::FORMAT_UNSPECIFIED) {
      return source_.Error("data.format",
                           "is not set; it is one of CRITEO_TSV, DLRM_NPY (or describe the files "
                           "with data.train)");
    }
    if (data_.path().empty()) {
      return source_.Error("data.path", "is empty; give it in the job file or with --data");
    }
    RETURN_IF_ERROR(CheckShare("data.test_share", data_.test_share()));
    if (data_.format() == Data::DLRM_NPY && !data_.test_path().empty()) {
      return source_.Error("data.test_path", "is for CRITEO_TSV; DLRM_NPY reads test_*.npy");
    }
    if (!data_.test_path().empty() && data_.test_share() > 0) {
      return source_.Error("data.test_share", "is set, and data.test_path as well; choose one");
    }
    for (const auto& [is_set, name] :
         {std::pair(data_.has_test(), "test"), std::pair(data_.has_split(), "split"),
          std::pair(data_.has_label(), "label")}) {
      if (!is_set) continue;
      return source_.Error(absl::StrCat("data.", name),
                           "goes with data.train, and data.format is set instead");
    }
    return absl::OkStatus();
  }

  absl::Status CheckFormat(const std::string& path, const Data::Files& files) const {
    if (files.path().empty()) {
      return source_.Error(path + ".path", "is empty; give it in the job file or with --data");
    }
    if (!files.has_csv()) return absl::OkStatus();
    const std::string& separator = files.csv().separator();
    if (separator.size() != 1 || absl::StrContains("\"\r\n", separator)) {
      return source_.Error(path + ".csv.separator",
                           "is not one character; a tab is written \"\\t\"");
    }
    if (files.csv().header() != files.csv().column().empty()) {
      return source_.Error(path + ".csv.column",
                           files.csv().header()
                               ? "is set, and header: true as well; the header names the columns"
                               : "is missing; name the columns, or say header: true where the "
                                 "files' first lines do");
    }
    return CheckNoRepeats(path + ".csv.column", ExpandColumns(files.csv().column()));
  }

  absl::Status CheckNoRepeats(const std::string& path, std::vector<std::string> names) const {
    std::sort(names.begin(), names.end());
    const auto twice = std::adjacent_find(names.begin(), names.end());
    if (twice == names.end()) return absl::OkStatus();
    return source_.Error(path, absl::StrCat("has '", *twice, "' twice"));
  }

  absl::Status CheckLongForm() const {
    if (data_.format() != Data::FORMAT_UNSPECIFIED) {
      return source_.Error("data.format", "is set, and data.train as well; choose one");
    }
    if (data_.train().format_case() == Data::Files::FORMAT_NOT_SET) {
      return source_.Error("data.train", "has no format: csv, criteo_tsv, npy or parquet");
    }
    RETURN_IF_ERROR(CheckFormat("data.train", data_.train()));
    if (IsNpy(data_)) return CheckNpy();
    if (data_.has_test()) {
      if (data_.test().format_case() != data_.train().format_case()) {
        return source_.Error("data.test", "has another format than data.train");
      }
      RETURN_IF_ERROR(CheckFormat("data.test", data_.test()));
    }
    RETURN_IF_ERROR(CheckSplit());
    if (data_.label().column().empty()) {
      return source_.Error("data.label", "names no column; only criteo_tsv and npy have their own");
    }
    const Job& written = source_.job();
    if (written.data().has_num_dense() && written.data().num_dense() != data_.num_dense()) {
      return source_.Error("data.num_dense",
                           absl::StrCat("is ", written.data().num_dense(), ", but ",
                                        data_.num_dense(), " features are numeric"));
    }
    for (const std::string& column : data_.label().column()) {
      RETURN_IF_ERROR(CheckColumn("data.label.column", column));
    }
    return absl::OkStatus();
  }

  // Each learns one of the label's columns, each of which is there once.
  absl::Status CheckTasks() const {
    const std::vector<std::string> labels = LabelColumns(job_);
    RETURN_IF_ERROR(CheckNoRepeats("data.label.column", labels));
    const std::string there_are = absl::StrJoin(labels, ", ");
    for (int i = 0; i < job_.task_size(); ++i) {
      const std::string path = absl::StrCat("task[", i, "].label");
      const std::string& label = job_.task(i).label();
      if (label.empty()) {
        return source_.Error(
            path, absl::StrCat("is missing; it is one of ", there_are, " (data.label.column)"));
      }
      if (std::find(labels.begin(), labels.end(), label) != labels.end()) continue;
      return source_.Error(path, absl::StrCat("is '", label, "', but there is no such label",
                                              DidYouMean(label, labels), "; there ",
                                              labels.size() > 1 ? "are " : "is ", there_are));
    }
    return absl::OkStatus();
  }

  absl::Status CheckNpy() const {
    if (data_.train().path_size() > 1) {
      return source_.Error("data.train.path", "is several; npy is read from one folder");
    }
    if (data_.has_test()) return source_.Error("data.test", "is for text; npy reads test_*.npy");
    if (!data_.label().positive().empty()) {
      return source_.Error("data.label.positive", "is for text; the labels of npy are 0 or 1");
    }
    for (const std::string& column : data_.label().column()) {
      if (column.empty()) return source_.Error("data.label.column", "is empty");
    }
    if (!data_.split().column().empty()) {
      return source_.Error("data.split.column", "is for text; npy columns have no names");
    }
    return CheckShare("data.split.last_share", data_.split().last_share());
  }

  absl::Status CheckSplit() const {
    const Data::Split& split = data_.split();
    RETURN_IF_ERROR(CheckShare("data.split.last_share", split.last_share()));
    if (data_.has_test() && (split.last_share() > 0 || !split.column().empty())) {
      return source_.Error("data.split", "is set, and data.test as well; choose one");
    }
    if (split.column().empty() != split.test_from().empty()) {
      return source_.Error(split.column().empty() ? "data.split.column" : "data.split.test_from",
                           "is missing; column and test_from go together");
    }
    if (split.column().empty()) return absl::OkStatus();
    if (split.last_share() > 0) {
      return source_.Error("data.split.last_share",
                           "is set, and data.split.column as well; choose one");
    }
    return CheckColumn("data.split.column", split.column());
  }

  // Columns that a header names are checked when it is read.
  absl::Status CheckColumn(const std::string& path, const std::string& column) const {
    if (column.empty()) return source_.Error(path, "is empty");
    if (IsNpy(data_)) return source_.Error(path, "names a column; those of npy have none");
    const Data data = DescribeData(data_);
    const std::vector<std::string> columns = TextColumns(data.train());
    const bool is_known = std::find(columns.begin(), columns.end(), column) != columns.end();
    if (is_known || columns.empty()) return absl::OkStatus();
    return source_.Error(path, absl::StrCat("names '", column, "', but there is no such column",
                                            DidYouMean(column, columns)));
  }

  const Job& job_;
  const JobSource& source_;
  const Data& data_;
};

class FeatureValidator {
 public:
  FeatureValidator(const Job& job, const JobSource& source)
      : job_(job),
        source_(source),
        stanzas_(FeatureStanzas(source.job())),
        data_(DescribeData(job.data())),
        columns_(TextColumns(data_.train())),
        known_columns_(columns_.begin(), columns_.end()) {}

  absl::Status Run() const {
    std::map<std::string, int> seen;
    uint64_t columns = 0, numeric = 0;
    for (int i = 0; i < job_.feature_size(); ++i) {
      const Feature& feature = job_.feature(i);
      RETURN_IF_ERROR(CheckStanza(i));
      RETURN_IF_ERROR(CheckName(source_, PathOf(i, "name"), feature.name()));
      const auto [first, is_new] = seen.emplace(feature.name(), i);
      if (!is_new) {
        return source_.Error(PathOf(i, "name"), absl::StrCat("is '", feature.name(), "', as is ",
                                                             PathOf(first->second, "name")));
      }
      if (IsNumeric(feature)) {
        ++numeric;
        RETURN_IF_ERROR(CheckNumeric(i));
        continue;
      }
      RETURN_IF_ERROR(CheckRange(source_, PathOf(i, "columns"), feature.columns(), 1, kMaxColumns));
      if (feature.has_sequence()) {
        RETURN_IF_ERROR(CheckRange(source_, PathOf(i, "sequence.max_length"),
                                   feature.sequence().max_length(), 1, kMaxSequenceLength));
      }
      if (!IsNpy(job_.data())) RETURN_IF_ERROR(CheckEmbedded(i));
      columns += feature.columns();
    }
    if (columns != job_.data().num_categorical()) {
      return source_.Error("data.num_categorical",
                           absl::StrCat("is ", job_.data().num_categorical(),
                                        ", but the features read ", columns, " columns"));
    }
    if (!IsNpy(job_.data()) && numeric != job_.data().num_dense()) {
      return source_.Error("data.num_dense", absl::StrCat("is ", job_.data().num_dense(), ", but ",
                                                          numeric, " features are numeric"));
    }
    return absl::OkStatus();
  }

 private:
  // The path of a field of the stanza that feature `i` comes from.
  std::string PathOf(int i, absl::string_view field) const {
    const bool is_written = i < static_cast<int>(stanzas_.size());
    return absl::StrCat("feature[", is_written ? stanzas_[i] : i, "].", field);
  }

  absl::Status CheckStanza(int i) const {
    const Feature& feature = job_.feature(i);
    if (IsNpy(job_.data())) {
      for (const auto& [is_set, name] :
           {std::pair(feature.column_size() > 0, "column"),
            std::pair(feature.has_categorical(), "categorical"),
            std::pair(feature.has_numeric(), "numeric"), std::pair(feature.has_cross(), "cross")}) {
        if (is_set) return source_.Error(PathOf(i, name), "is for text, and the data are npy");
      }
      if (!feature.has_sequence() || (feature.columns() == 1 && !feature.has_padding_id())) {
        return absl::OkStatus();
      }
      return source_.Error(
          PathOf(i, feature.has_padding_id() ? "padding_id" : "columns"),
          "is for columns of *_sparse.npy, and a sequence has files of its own, without padding");
    }
    if (i < static_cast<int>(stanzas_.size())) {
      const Feature& stanza = source_.job().feature(stanzas_[i]);
      const size_t columns = ExpandColumns(stanza.column()).size();
      if (columns > 1 && !stanza.name().empty()) {
        return source_.Error(PathOf(i, "name"),
                             absl::StrCat("is one name, and the stanza has ", columns,
                                          " columns, which are a feature each"));
      }
    }
    if (feature.has_numeric() &&
        (feature.has_categorical() || feature.has_sequence() || feature.has_cross())) {
      return source_.Error(PathOf(i, "numeric"), "is set beside another kind; choose one");
    }
    if (feature.has_cross() && (feature.has_categorical() || feature.has_sequence())) {
      return source_.Error(PathOf(i, "cross"), "is set beside another kind; choose one");
    }
    return feature.has_cross() ? CheckCross(i)
                               : CheckColumn(PathOf(i, "column"), feature.column(0));
  }

  absl::Status CheckColumn(const std::string& path, const std::string& column) const {
    if (!columns_.empty() && known_columns_.count(column) == 0) {
      return source_.Error(path, absl::StrCat("names '", column, "', but there is no such column",
                                              DidYouMean(column, columns_)));
    }
    for (const std::string& label : data_.label().column()) {
      if (label != column) continue;
      return source_.Error(path, absl::StrCat("is '", label, "', which is a label"));
    }
    return absl::OkStatus();
  }

  absl::Status CheckNumeric(int i) const {
    const Feature& feature = job_.feature(i);
    if (!feature.table().empty() || feature.pooling() != POOLING_UNSPECIFIED) {
      return source_.Error(PathOf(i, feature.table().empty() ? "pooling" : "table"),
                           "is set, but a numeric feature reads no table");
    }
    const Feature::Numeric& numeric = feature.numeric();
    if (numeric.has_missing() && !std::isfinite(numeric.missing())) {
      return source_.Error(PathOf(i, "numeric.missing"), "must be a finite number");
    }
    for (int t = 0; t < numeric.transform_size(); ++t) {
      const Feature::Numeric::Transform& transform = numeric.transform(t);
      const std::string path = PathOf(i, absl::StrCat("numeric.transform[", t, "]"));
      if (transform.kind_case() == Feature::Numeric::Transform::KIND_NOT_SET) {
        return source_.Error(path, "is empty; it is one of log1p, clip, standardize");
      }
      const Feature::Numeric::Transform::Clip& clip = transform.clip();
      if (transform.has_clip() && !clip.has_min() && !clip.has_max()) {
        return source_.Error(path + ".clip", "has neither min nor max");
      }
      if (std::isnan(clip.min()) || std::isnan(clip.max()) ||
          (clip.has_min() && clip.has_max() && clip.min() > clip.max())) {
        return source_.Error(
            path + ".clip.min",
            absl::StrCat("is ", clip.min(), "; it must be at most max, ", clip.max()));
      }
      if (!transform.has_standardize()) continue;
      const auto& standardize = transform.standardize();
      if (!(standardize.std() > 0) || !std::isfinite(standardize.std())) {
        return source_.Error(
            path + ".standardize.std",
            absl::StrCat("is ", standardize.std(), "; it must be finite and above 0"));
      }
      if (!std::isfinite(standardize.mean())) {
        return source_.Error(path + ".standardize.mean", "must be a finite number");
      }
    }
    return absl::OkStatus();
  }

  absl::Status CheckEmbedded(int i) const {
    const Feature& feature = job_.feature(i);
    const bool is_short = !job_.data().has_train();
    if (feature.columns() != 1) {
      return source_.Error(
          PathOf(i, "columns"),
          absl::StrCat("is ", feature.columns(), "; in ", is_short ? "CRITEO_TSV" : "text",
                       " a bag is one column, its values separated by ",
                       is_short ? "commas" : "categorical.separator"));
    }
    if (feature.has_padding_id()) {
      return source_.Error(PathOf(i, "padding_id"),
                           absl::StrCat("is for ",
                                        is_short ? "DLRM_NPY; in CRITEO_TSV"
                                                 : "npy; in "
                                                   "text",
                                        " a bag has no padding"));
    }
    return feature.has_cross() ? absl::OkStatus() : CheckCategorical(i);
  }

  absl::Status CheckCategorical(int i) const {
    const Feature& feature = job_.feature(i);
    const Feature::Categorical& categorical = feature.categorical();
    if (!categorical.weights().empty()) {
      RETURN_IF_ERROR(CheckColumn(PathOf(i, "categorical.weights"), categorical.weights()));
    }
    const bool has_boundaries = categorical.boundaries_size() > 0;
    if (has_boundaries && categorical.id() != Feature::Categorical::ID_UNSPECIFIED) {
      return source_.Error(PathOf(i, "categorical.id"), "is set beside boundaries; choose one");
    }
    if (has_boundaries && categorical.buckets() > 0) {
      return source_.Error(PathOf(i, "categorical.buckets"),
                           "is set beside boundaries, which make few keys by themselves");
    }
    for (int b = 0; b < categorical.boundaries_size(); ++b) {
      if (std::isfinite(categorical.boundaries(b)) &&
          (b == 0 || categorical.boundaries(b) > categorical.boundaries(b - 1))) {
        continue;
      }
      return source_.Error(
          PathOf(i, "categorical.boundaries"),
          absl::StrCat("must be finite and ascend; ", categorical.boundaries(b), " does not"));
    }
    if (categorical.has_min() && categorical.id() != Feature::Categorical::INTEGER) {
      return source_.Error(PathOf(i, "categorical.min"), "goes with id: INTEGER");
    }
    const std::string& separator = categorical.separator();
    const Data::Files& train = data_.train();
    const std::string of_columns = train.has_csv() ? train.csv().separator() : "\t";
    if (separator.size() > 1 || (separator == of_columns && !train.has_parquet()) ||
        (!separator.empty() && absl::StrContains("\"\r\n", separator))) {
      return source_.Error(PathOf(i, "categorical.separator"),
                           absl::StrCat("is '", separator,
                                        "'; it must be one character, and not "
                                        "the one between columns"));
    }
    if (feature.has_sequence() && separator.empty()) {
      return source_.Error(PathOf(i, "categorical.separator"),
                           "is empty, and the feature is a sequence");
    }
    return absl::OkStatus();
  }

  absl::Status CheckCross(int i) const {
    const Feature::Cross& cross = job_.feature(i).cross();
    const std::string path = PathOf(i, "cross.of");
    if (job_.feature(i).column_size() > 0) {
      return source_.Error(PathOf(i, "column"), "is set, but a cross reads the features of `of`");
    }
    if (cross.of_size() < 2) return source_.Error(path, "names fewer than two features");
    std::vector<std::string> names;
    for (const Feature* feature : EmbeddedFeatures(job_)) names.push_back(feature->name());
    for (const std::string& name : cross.of()) {
      const auto found =
          std::find_if(job_.feature().begin(), job_.feature().end(),
                       [&](const Feature& feature) { return feature.name() == name; });
      if (found == job_.feature().end()) {
        return source_.Error(path, absl::StrCat("names '", name, "', but there is no such feature",
                                                DidYouMean(name, names)));
      }
      const char* wrong = found->has_numeric()                        ? "is numeric"
                          : found->has_cross()                        ? "is a cross itself"
                          : found->has_sequence()                     ? "is a sequence"
                          : !found->categorical().separator().empty() ? "is a list"
                          : found->categorical().missing() == Feature::Categorical::NO_KEY
                              ? "may have no key (missing: NO_KEY)"
                              : nullptr;
      if (wrong != nullptr) {
        return source_.Error(path, absl::StrCat("names '", name, "', which ", wrong));
      }
    }
    return absl::OkStatus();
  }

  const Job& job_;
  const JobSource& source_;
  const std::vector<int> stanzas_;
  const Data data_;                         // In the long form.
  const std::vector<std::string> columns_;  // {}: a header names them.
  const std::set<std::string> known_columns_;
};

}  // namespace

absl::Status ValidateData(const Job& resolved, const JobSource& source) {
  return DataValidator(resolved, source).CheckData();
}

absl::Status ValidateFeatures(const Job& resolved, const JobSource& source) {
  return FeatureValidator(resolved, source).Run();
}

}  // namespace thermocline

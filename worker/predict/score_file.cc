#include "worker/predict/score_file.h"

#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/arrow/parquet.h"
#include "common/base/check.h"
#include "common/base/status_macros.h"
#include "common/base/text.h"
#include "common/disk/disk.h"
#include "common/disk/npy.h"

namespace thermocline {
namespace {

constexpr size_t kFlushBytes = 1 << 20;

// Writes the fewest digits that give the same number back.
template <typename Number>
void AppendNumber(Number number, std::string* out) {
  char digits[32];
  const auto end = std::to_chars(digits, digits + sizeof(digits), number);
  CHECK(end.ec == std::errc());
  out->append(digits, end.ptr);
}

void AppendText(absl::string_view text, std::string* out) {
  if (text.find_first_of(",\"\r\n") == text.npos) {
    out->append(text.data(), text.size());
    return;
  }
  *out += '"';
  for (const char c : text) {
    if (c == '"') *out += '"';
    *out += c;
  }
  *out += '"';
}

// The file has a header, then a line for each row: its number, its labels, the carried columns, its
// scores.
class CsvScores : public ScoreFile {
 public:
  explicit CsvScores(const ScoreFileOptions& options) : ScoreFile(options) {}

  absl::Status Open() {
    ASSIGN_OR_RETURN(file_, PosixDisk().Create(temporary_));
    text_ = "row,";
    for (size_t t = 0; t < num_tasks() && options_.has_labels; ++t) {
      AppendText(NameOf("label", t), &text_);
      text_ += ',';
    }
    for (const std::string& column : options_.columns) {
      AppendText(column, &text_);
      text_ += ',';
    }
    for (size_t t = 0; t < num_tasks(); ++t) {
      AppendText(NameOf("score", t), &text_);
      text_ += t + 1 == num_tasks() ? '\n' : ',';
    }
    return absl::OkStatus();
  }

  absl::Status Append(const ScoredBatch& scored) override {
    for (int i = 0; i < scored.batch->size; ++i) {
      AppendNumber(scored.rows[i], &text_);
      text_ += ',';
      for (size_t t = 0; t < num_tasks() && options_.has_labels; ++t) {
        const float label = scored.batch->labels[i * num_tasks() + t];
        text_ += std::isnan(label) ? "," : label != 0 ? "1," : "0,";
      }
      for (const std::vector<std::string>& column : scored.batch->carried) {
        AppendText(column[i], &text_);
        text_ += ',';
      }
      for (size_t t = 0; t < num_tasks(); ++t) {
        const double score = ScoreOf(scored, t, i);
        // A logit is a float32, whose digits are fewer.
        options_.logits ? AppendNumber(static_cast<float>(score), &text_)
                        : AppendNumber(score, &text_);
        text_ += t + 1 == num_tasks() ? '\n' : ',';
      }
    }
    return text_.size() < kFlushBytes ? absl::OkStatus() : Flush();
  }

 private:
  absl::Status Flush() {
    const absl::string_view piece = text_;
    RETURN_IF_ERROR(file_->Append({piece}));
    text_.clear();
    return absl::OkStatus();
  }
  absl::Status Close(int64_t) override {
    RETURN_IF_ERROR(Flush());
    return file_->Sync();
  }

  std::unique_ptr<AppendFile> file_;
  std::string text_;
};

// The file is float32 [rows], and of several tasks [rows, tasks]; NaN where a row was left out.
class NpyScores : public ScoreFile {
 public:
  explicit NpyScores(const ScoreFileOptions& options) : ScoreFile(options) {}

  absl::Status Open() {
    if (!options_.columns.empty()) {
      return absl::InvalidArgumentError(
          absl::StrCat(options_.path, ": an npy file has scores alone; columns go along in csv"));
    }
    std::vector<int64_t> shape_of_row;
    if (num_tasks() > 1) shape_of_row.push_back(static_cast<int64_t>(num_tasks()));
    ASSIGN_OR_RETURN(writer_, NpyWriter::Create(temporary_, "<f4", shape_of_row));
    return absl::OkStatus();
  }

  absl::Status Append(const ScoredBatch& scored) override {
    scores_.clear();
    for (int i = 0; i < scored.batch->size; ++i) {
      FillUpTo(scored.rows[i]);
      for (size_t t = 0; t < num_tasks(); ++t) {
        scores_.push_back(static_cast<float>(ScoreOf(scored, t, i)));
      }
      ++next_row_;
    }
    return WriteScores();
  }

 private:
  void FillUpTo(int64_t row) {
    for (; next_row_ < row; ++next_row_) scores_.insert(scores_.end(), num_tasks(), NAN);
  }
  absl::Status WriteScores() {
    return writer_->Append(scores_.data(), static_cast<int64_t>(scores_.size() / num_tasks()));
  }
  absl::Status Close(int64_t total_rows) override {
    scores_.clear();
    FillUpTo(total_rows);
    RETURN_IF_ERROR(WriteScores());
    return writer_->Finish();
  }

  std::unique_ptr<NpyWriter> writer_;
  std::vector<float> scores_;
  int64_t next_row_ = 0;
};

// The columns are those of csv: row int64, label float32 (NaN where there is none), texts, score
// float64.
class ParquetScores : public ScoreFile {
 public:
  explicit ParquetScores(const ScoreFileOptions& options) : ScoreFile(options) {}

  absl::Status Open() {
    ASSIGN_OR_RETURN(writer_, ParquetWriter::Create(temporary_));
    return absl::OkStatus();
  }

  absl::Status Append(const ScoredBatch& scored) override {
    const Batch& batch = *scored.batch;
    RETURN_IF_ERROR(CheckTexts(scored));
    rows_.insert(rows_.end(), scored.rows.begin(), scored.rows.end());
    labels_.resize(options_.has_labels ? num_tasks() : 0);
    for (size_t t = 0; t < labels_.size(); ++t) {
      for (int i = 0; i < batch.size; ++i) {
        labels_[t].push_back(batch.labels[i * num_tasks() + t]);
      }
    }
    texts_.resize(options_.columns.size());
    for (size_t c = 0; c < texts_.size(); ++c) {
      texts_[c].insert(texts_[c].end(), batch.carried[c].begin(), batch.carried[c].end());
    }
    scores_.resize(num_tasks());
    for (size_t t = 0; t < num_tasks(); ++t) {
      for (int i = 0; i < batch.size; ++i) scores_[t].push_back(ScoreOf(scored, t, i));
    }
    return rows_.size() < kRowsOfGroup ? absl::OkStatus() : WriteGroup();
  }

 private:
  static constexpr size_t kRowsOfGroup = 64 << 10;

  // Readers refuse a file, or show other characters, where a text is not UTF-8.
  absl::Status CheckTexts(const ScoredBatch& scored) const {
    for (size_t c = 0; c < options_.columns.size(); ++c) {
      const std::vector<std::string>& texts = scored.batch->carried[c];
      const auto bad = std::find_if_not(texts.begin(), texts.end(),
                                        [](const std::string& text) { return IsUtf8(text); });
      if (bad == texts.end()) continue;
      return absl::InvalidArgumentError(absl::StrCat(
          "row ", scored.rows[bad - texts.begin()], " (counted from 0): --column ",
          options_.columns[c], " is '", absl::CHexEscape(*bad),
          "', which is not UTF-8, as texts of a Parquet file have to be; a .csv file takes it as "
          "it is"));
    }
    return absl::OkStatus();
  }

  absl::Status WriteGroup() {
    std::vector<ParquetOutput> columns;
    columns.push_back({"row", std::exchange(rows_, {})});
    labels_.resize(options_.has_labels ? num_tasks() : 0);
    for (size_t t = 0; t < labels_.size(); ++t) {
      columns.push_back({NameOf("label", t), std::exchange(labels_[t], {})});
    }
    texts_.resize(options_.columns.size());
    for (size_t c = 0; c < texts_.size(); ++c) {
      columns.push_back({options_.columns[c], std::exchange(texts_[c], {})});
    }
    scores_.resize(num_tasks());
    for (size_t t = 0; t < num_tasks(); ++t) {
      columns.push_back({NameOf("score", t), std::exchange(scores_[t], {})});
    }
    has_group_ = true;
    return writer_->Append(columns);
  }
  absl::Status Close(int64_t) override {
    if (!rows_.empty() || !has_group_) RETURN_IF_ERROR(WriteGroup());
    return writer_->Close();
  }

  std::unique_ptr<ParquetWriter> writer_;
  bool has_group_ = false;
  // The columns of the row group that is not written yet.
  std::vector<int64_t> rows_;
  std::vector<std::vector<float>> labels_;
  std::vector<std::vector<std::string>> texts_;
  std::vector<std::vector<double>> scores_;
};

template <typename Format>
absl::StatusOr<std::unique_ptr<ScoreFile>> Open(const ScoreFileOptions& options) {
  auto file = std::make_unique<Format>(options);
  RETURN_IF_ERROR(file->Open());
  return file;
}

}  // namespace

double Probability(float logit) { return 1 / (1 + std::exp(-static_cast<double>(logit))); }

absl::StatusOr<std::unique_ptr<ScoreFile>> ScoreFile::Create(const ScoreFileOptions& options) {
  if (absl::EndsWith(options.path, ".csv")) return Open<CsvScores>(options);
  if (absl::EndsWith(options.path, ".npy")) return Open<NpyScores>(options);
  if (absl::EndsWith(options.path, ".parquet")) return Open<ParquetScores>(options);
  return absl::InvalidArgumentError(absl::StrCat(
      "'", options.path, "' ends in no format that scores are written in: .csv, .npy, .parquet"));
}

ScoreFile::~ScoreFile() { unlink(temporary_.c_str()); }

absl::Status ScoreFile::Finish(int64_t total_rows) {
  RETURN_IF_ERROR(Close(total_rows));
  return PosixDisk().Rename(temporary_, options_.path);
}

}  // namespace thermocline

#include "worker/data/batch_reader.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/status_macros.h"
#include "common/base/threads.h"
#include "common/base/trace.h"

namespace thermocline {
namespace {

absl::Status Cancelled() { return absl::CancelledError("reading was cancelled"); }

}  // namespace

BatchReader::BatchReader(std::unique_ptr<BatchSource> source, const BatchReaderOptions& options)
    : source_(std::move(source)),
      options_(options),
      being_skipped_(options.place.before),
      entries_(std::max({options.read_ahead_batches, options.parser_threads, 1u})),
      next_step_(options.start_step.value()),
      parse_step_(options.start_step.value()) {
  CHECK_GE(options_.batch_size, 1);
  CHECK_GE(options_.num_workers, 1u);
  CHECK_GE(options_.place.first_step.value(), 0);
  CHECK_GE(options_.start_step.value(), options_.place.first_step.value());
  CHECK_LT(options_.rank.value(), options_.num_workers);
  threads_.push_back(MakeThread([this] { ReadLoop(); }));
  for (uint32_t i = 0; i < std::max<uint32_t>(options_.parser_threads, 1); ++i) {
    threads_.push_back(MakeThread([this] { ParseLoop(); }));
  }
}

BatchReader::~BatchReader() {
  Cancel();
  for (std::thread& thread : threads_) thread.join();
}

void BatchReader::Cancel() {
  source_->Cancel();
  absl::MutexLock lock(&mutex_);
  cancelled_ = true;
}

absl::StatusOr<std::unique_ptr<Batch>> BatchReader::Next() {
  absl::MutexLock lock(&mutex_);
  Entry* const entry = &entries_[next_step_ % entries_.size()];
  const auto answerable = [this, entry]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return cancelled_ || ended_ || entry->state == EntryState::kReady;
  };
  mutex_.Await(absl::Condition(&answerable));
  if (cancelled_) return Cancelled();
  if (!ended_) {
    absl::Status status = entry->end ? entry->status : CountBadRows(*entry);
    if (entry->end || !status.ok()) {
      ended_ = true;
      final_status_ = std::move(status);
    }
  }
  if (ended_) {
    if (!final_status_.ok()) return final_status_;
    progress_.fraction = options_.place.progress_through;
    return std::unique_ptr<Batch>();
  }
  std::unique_ptr<Batch> batch = std::move(entry->batch);
  progress_.fraction = batch->progress;
  progress_.samples += batch->size;
  progress_.padding_ids += batch->padding_ids;
  ++progress_.steps;
  entry->state = EntryState::kEmpty;
  ++next_step_;
  return batch;
}

absl::Status BatchReader::CountBadRows(const Entry& entry) {
  if (next_step_ == options_.start_step.value()) first_pass_ = entry.pass;
  if (entry.pass > first_pass_) return absl::OkStatus();  // The same lines have been counted.
  progress_.repeated_headers += entry.headers;
  const uint64_t met = progress_.bad_lines + entry.bad_rows.size();
  for (int64_t row : entry.bad_rows) {
    absl::Status why;
    if (progress_.bad_lines == 0 || progress_.bad_lines == options_.max_bad_lines) {
      why = source_->DescribeBadRow(entry.raw, row);
    }
    if (progress_.bad_lines == 0) progress_.first_bad_line = std::string(why.message());
    if (progress_.bad_lines == options_.max_bad_lines) return TooManyBadRows(why, met);
    ++progress_.bad_lines;
  }
  return absl::OkStatus();
}

absl::Status BatchReader::TooManyBadRows(const absl::Status& last, uint64_t met) const {
  if (options_.max_bad_lines == 0) {
    if (met == 1) return last;
    return absl::Status(last.code(),
                        absl::StrCat(last.message(), "; ", met - 1, " more in this batch ",
                                     met == 2 ? "is" : "are", " malformed, too"));
  }
  return absl::Status(last.code(),
                      absl::StrCat(last.message(), "; data.max_bad_lines allows each worker ",
                                   options_.max_bad_lines,
                                   options_.max_bad_lines == 1 ? " such line" : " such lines",
                                   ", but worker ", options_.rank.value(), " has met ", met,
                                   "; the first was ", progress_.first_bad_line));
}

void BatchReader::Recycle(std::unique_ptr<Batch> batch) {
  if (batch == nullptr) return;
  absl::MutexLock lock(&mutex_);
  spare_.push_back(std::move(batch));
}

std::unique_ptr<Batch> BatchReader::TakeSpare() {
  absl::MutexLock lock(&mutex_);
  if (spare_.empty()) return std::make_unique<Batch>();
  std::unique_ptr<Batch> batch = std::move(spare_.back());
  spare_.pop_back();
  return batch;
}

BatchReader::Progress BatchReader::progress() const {
  absl::MutexLock lock(&mutex_);
  return progress_;
}

BatchReader::Skipped BatchReader::skipped() const {
  absl::MutexLock lock(&mutex_);
  return skipped_;
}

int64_t BatchReader::CountSkipped(int64_t rows) {
  const int64_t full = rows / options_.batch_size;
  const int64_t rest = rows % options_.batch_size;
  const auto slice = [this](int64_t batch_rows) {
    const int64_t rank = options_.rank.value();
    return SliceBegin(batch_rows, rank + 1, options_.num_workers) -
           SliceBegin(batch_rows, rank, options_.num_workers);
  };
  const int64_t steps = full + (rest > 0 ? 1 : 0);
  being_skipped_.steps += steps;
  being_skipped_.samples += full * slice(options_.batch_size) + slice(rest);
  being_skipped_.global_samples += rows;
  return steps;
}

absl::Status BatchReader::SkipSteps() {
  int64_t left = options_.start_step.value() - options_.place.first_step.value();
  while (left > 0 && pass_ < options_.passes) {
    RETURN_IF_ERROR(source_->Rewind(pass_));
    ASSIGN_OR_RETURN(const int64_t rows, source_->Skip(left * options_.batch_size));
    const int64_t steps = CountSkipped(rows);
    left -= steps;
    pass_started_ = left == 0;
    if (pass_started_) break;
    ++pass_;
    // Now that the length of a pass is known, whole ones need not be read.
    for (; steps > 0 && left > steps && pass_ < options_.passes; ++pass_) {
      left -= CountSkipped(rows);
    }
  }
  if (left == 0) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      "train.passes=", options_.passes, " ends before step ", options_.start_step.value() - 1,
      " of the checkpoint: the training data ends ", "after step ", being_skipped_.steps - 1,
      ", but this worker is to begin at step ", options_.start_step.value(),
      "; it takes more passes, or the data that the checkpoint was trained on"));
}

// The step of a batch in traces.
Step BatchReader::TracedStep(int64_t step) const {
  return options_.is_held_out ? kNoStep : Step(step);
}

void BatchReader::ReadLoop() {
  NameTraceThread("read data");
  const absl::Status skipped = SkipSteps();
  {
    absl::MutexLock lock(&mutex_);
    skipped_ = being_skipped_;
  }
  for (int64_t step = options_.start_step.value();; ++step) {
    Entry* const entry = &entries_[step % entries_.size()];
    {
      absl::MutexLock lock(&mutex_);
      const auto free = [this, entry]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
        return cancelled_ || entry->state == EntryState::kEmpty;
      };
      mutex_.Await(absl::Condition(&free));
      if (cancelled_) return;
    }
    const absl::StatusOr<bool> read = skipped.ok() ? ReadStep(step, entry) : skipped;
    entry->end = !read.ok() || !*read;
    entry->status = read.status();
    absl::MutexLock lock(&mutex_);
    entry->state = entry->end ? EntryState::kReady : EntryState::kRead;
    if (entry->end) return;
  }
}

absl::StatusOr<bool> BatchReader::ReadStep(int64_t step, Entry* entry) {
  if (options_.max_steps > 0 && static_cast<uint64_t>(step) >= options_.max_steps) return false;
  const TraceSpan span("read rows", TracedStep(step));
  while (pass_ < options_.passes) {
    if (!pass_started_) {
      RETURN_IF_ERROR(source_->Rewind(pass_));
      at_first_row_ = true;
    }
    pass_started_ = true;
    ASSIGN_OR_RETURN(const bool some, source_->Read(options_.batch_size, &entry->raw));
    if (some) {
      RawBatch& raw = entry->raw;
      const int64_t rank = options_.rank.value();
      raw.slice_begin = SliceBegin(raw.num_rows, rank, options_.num_workers);
      raw.slice_end = SliceBegin(raw.num_rows, rank + 1, options_.num_workers);
      entry->pass = options_.place.first_pass + pass_;
      entry->begins_pass =
          std::exchange(at_first_row_, false) && (pass_ > 0 || options_.place.begins_pass);
      return true;
    }
    ++pass_;
    pass_started_ = false;
  }
  return false;
}

void BatchReader::ParseLoop() {
  NameTraceThread("parse data");
  for (;;) {
    Entry* entry;
    int64_t step;
    {
      absl::MutexLock lock(&mutex_);
      const auto work = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
        const Entry& next = entries_[parse_step_ % entries_.size()];
        return cancelled_ || next.state == EntryState::kRead ||
               (next.state == EntryState::kReady && next.end);
      };
      mutex_.Await(absl::Condition(&work));
      step = parse_step_;
      entry = &entries_[step % entries_.size()];
      if (cancelled_ || entry->state == EntryState::kReady) return;
      entry->state = EntryState::kParsing;
      ++parse_step_;
    }
    entry->status = ParseStep(step, entry);
    entry->end = !entry->status.ok();
    absl::MutexLock lock(&mutex_);
    entry->state = EntryState::kReady;
  }
}

absl::Status BatchReader::ParseStep(int64_t step, Entry* entry) {
  const TraceSpan span("parse rows", TracedStep(step));
  if (entry->batch == nullptr) entry->batch = TakeSpare();
  entry->bad_rows.clear();
  if (options_.lookup_maker != nullptr) entry->batch->features.swap(entry->columns);
  RETURN_IF_ERROR(source_->Parse(entry->raw, entry->batch.get(), &entry->bad_rows));
  if (options_.lookup_maker != nullptr) {
    options_.lookup_maker->MakeLookups(entry->batch.get(), &entry->columns);
  }
  RETURN_IF_ERROR(
      CheckLookups(options_.lookups, entry->raw, entry->bad_rows, *entry->batch, source_.get()));
  entry->batch->first_row = entry->raw.first_row + entry->raw.slice_begin;
  entry->batch->slice_begin = entry->raw.slice_begin;
  entry->batch->left_out.clear();
  for (const int64_t row : entry->bad_rows) {
    entry->batch->left_out.push_back(row - entry->raw.slice_begin);
  }
  std::vector<int64_t>& bad = entry->bad_rows;
  const auto is_header = [&](int64_t row) { return source_->IsHeader(entry->raw, row); };
  const auto headers = std::remove_if(bad.begin(), bad.end(), is_header);
  entry->headers = static_cast<uint64_t>(bad.end() - headers);
  bad.erase(headers, bad.end());
  entry->batch->step = Step(step);
  entry->batch->global_samples = entry->raw.num_rows;
  entry->batch->pass = entry->pass;
  entry->batch->begins_pass = entry->begins_pass;
  const SourcePlace& place = options_.place;
  const double read = (entry->pass - place.first_pass + entry->raw.pass_progress) / options_.passes;
  const double of_max =
      options_.max_steps == 0 ? 0 : (step + 1.0) / static_cast<double>(options_.max_steps);
  const double of_source = std::min(1.0, std::max(read, of_max));
  entry->batch->progress =
      place.progress_before + of_source * (place.progress_through - place.progress_before);
  return absl::OkStatus();
}

}  // namespace thermocline

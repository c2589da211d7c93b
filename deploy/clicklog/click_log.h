// Writes a synthetic click log with the shape of Criteo's Kaggle log, for first trials, tests and
// measurements that need any number of rows.
//
// Ids are skewed (Zipf) and correlated: a row draws a user, an item and a context, and each of the
// 26 columns is an attribute of one of them. With a correlation above 0 the three are popular
// together, so that more rows have popular ids alone, as in real logs. Labels come from a planted
// model (click_model.h), so AUC means something: the best that any model can reach is in the
// summary.
#ifndef THERMOCLINE_DEPLOY_CLICKLOG_CLICK_LOG_H_
#define THERMOCLINE_DEPLOY_CLICKLOG_CLICK_LOG_H_

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace thermocline {

enum class ClickLogFormat {
  kNpy,      // {train,test}_{dense,sparse,labels}.npy and cardinalities.txt
  kTsv,      // {train,test}.tsv, Criteo's text form
  kTsvGzip,  // {train,test}.tsv.gz
};

struct ClickLogOptions {
  std::string folder;  // It is made if it isn't there. Files of the same names are overwritten.
  ClickLogFormat format = ClickLogFormat::kNpy;
  int64_t rows = 1'000'000;     // At least 1.
  int64_t test_rows = 100'000;  // 0: no test files.
  double skew = 1.05;           // Exponent of the Zipf distributions, in (0, 4].
  int64_t users = 5'000'000;    // At least 1.
  int64_t items = 1'000'000;    // At least 1.
  double shrink = 1;            // Divides every cardinality above 10,000; at least 1.
  // In [0, 1]: how far a row's user, item and context are popular together. 0: they are
  // independent. It does not change how often each of them comes.
  double correlation = 0;
  uint64_t seed = 1;
  int threads = 0;  // 0: one for each core. The bytes written don't depend on it.
};

struct ClickLogSplit {
  int64_t rows = 0;
  double click_rate = 0;
  double best_auc = 0;  // The AUC of the planted model itself on these rows.
  int64_t distinct_ids = 0;
  std::vector<std::string> files;
};

struct ClickLogSummary {
  ClickLogSplit train;
  ClickLogSplit test;
  std::vector<int64_t> cardinalities;  // [26]
};

// Called after each block of rows, by one thread at a time.
using ClickLogProgress = std::function<void(int64_t rows_done, int64_t rows_total)>;

// Writes the log. The same options give the same bytes. Until it is complete, a text file has
// another name, and an .npy file cannot be read. Errors: kInvalidArgument (names the option);
// kNotFound, kPermissionDenied, kUnavailable (name the file).
absl::StatusOr<ClickLogSummary> GenerateClickLog(const ClickLogOptions& options,
                                                 const ClickLogProgress& progress);

}  // namespace thermocline

#endif  // THERMOCLINE_DEPLOY_CLICKLOG_CLICK_LOG_H_

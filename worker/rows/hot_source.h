// The EmbeddingSource of a job with hot and cold batches (docs/architecture.md, "Hot and cold
// batches"). A hot step, whose context has the plan of a hot stage (hot_rows.h), reads rows that
// every worker holds on its device. A cold one goes to a RemoteSource inside.
//
//   Await       the first hot step, and the first after cold ones, loads all hot rows with their
//               optimizer state, as all steps before have left them on the servers
//   Update      the only worker updates its rows; of several, each takes its gradients to the host
//   Push        several workers send their gradients to all of them (hot_gradients.h)
//   FinishPush  each updates all of its rows with the sums, as the others do
//
// Hot steps push nothing but their share of the dense parameters, until a step writes back: then
// each rank brings the servers those rows that changed since and whose owner it is, which is
// ClusterMap's choice among the ranks.
#ifndef THERMOCLINE_WORKER_ROWS_HOT_SOURCE_H_
#define THERMOCLINE_WORKER_ROWS_HOT_SOURCE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "kernels/device.h"
#include "worker/exchange/exchange.h"
#include "worker/rows/embedding_source.h"
#include "worker/rows/hot_gradients.h"
#include "worker/rows/hot_loader.h"
#include "worker/rows/hot_rows.h"
#include "worker/rows/owned_rows.h"
#include "worker/rows/row_gradients.h"
#include "worker/session/ps_session.h"

namespace thermocline {

struct HotSourceOptions : RemoteSourceOptions {
  Step start_step{0};
  const HotRows* hot_rows = nullptr;  // Outlives the source.
  // Rows are loaded, and written back, in pieces of about so many bytes; a few are on the host at a
  // time.
  uint64_t load_piece_bytes = uint64_t{32} << 20;
  uint64_t write_back_piece_bytes = uint64_t{32} << 20;
};

class HotSource : public EmbeddingSource {
 public:
  // exchange: null where there is one worker. All that is pointed to outlives the source. REQUIRES:
  // staleness_steps is 0; of the contexts that are fetched, those of hot steps alone have a cache
  // plan; the last hot step before a cold one or an evaluation writes back.
  HotSource(const HotSourceOptions& options, Exchange* exchange, PsSession* session,
            Device* device);
  ~HotSource() override;

  // The only worker's device may have the next step while this one's results are awaited.
  int fetch_ahead() const override {
    return exchange_ == nullptr && !device_->is_host_memory() ? 1 : 0;
  }
  void Fetch(const std::shared_ptr<StepContext>& context,
             const std::vector<std::vector<PullSlice>>& dense) override;
  Step AwaitsPushOf(const StepContext& context) const override;
  // Errors: the device's, the session's.
  absl::Status Await(StepContext* context) override;
  void Update(StepContext* context) override;
  // Errors of both: kInvalidArgument (a gradient, or the sum of the ranks' gradients, is not
  // finite: names table and key), those of the exchange and the session.
  absl::Status Push(const std::shared_ptr<StepContext>& context,
                    std::vector<std::vector<wire::PushSlice>> dense) override;
  absl::Status FinishPush(StepContext* context) override;
  void FetchForEvaluation(const std::shared_ptr<StepContext>& context, Step step) override;
  const OwnedRows* cache() const override { return &rows_; }

 private:
  struct OfStep;

  bool is_alone() const { return exchange_ == nullptr; }
  void CountCold(const StepContext& context);

  absl::Status PushCold(const std::shared_ptr<StepContext>& context,
                        std::vector<std::vector<wire::PushSlice>> dense);
  absl::Status PostGradients(StepContext* context);
  absl::Status UpdateAll(const StepContext& context);
  void NoteOwnUpdates(size_t t, absl::Span<const int32_t> rows, absl::Span<const uint32_t> counts);

  const HotSourceOptions options_;
  Exchange* const exchange_;
  PsSession* const session_;
  Device* const device_;
  RemoteSource remote_;  // for cold steps and evaluation
  OwnedRows rows_;
  HotLoader loader_;
  bool is_loaded_ = false;  // for the next hot step that is fetched

  RowGradients gradients_;  // one worker's
  // Several workers:
  std::unique_ptr<HotGradients> exchanged_;
  StepTransfers merged_;  // the sums, on their way to the device
  std::vector<int32_t> own_rows_;
  std::vector<uint32_t> own_counts_;
};

}  // namespace thermocline

#endif  // THERMOCLINE_WORKER_ROWS_HOT_SOURCE_H_

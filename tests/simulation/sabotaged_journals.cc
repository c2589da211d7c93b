#include "tests/simulation/sabotaged_journals.h"

#include <optional>
#include <string>
#include <utility>

#include "common/base/status_macros.h"

namespace thermocline {
namespace {

// Writes each chunk only when the next one comes; the last dies with it.
class LateJournal : public PushJournal {
 public:
  explicit LateJournal(std::unique_ptr<PushJournal> real) : real_(std::move(real)) {}

  absl::Status Append(const wire::PushChunk& chunk) override {
    if (held_back_.has_value()) RETURN_IF_ERROR(real_->Append(*held_back_));
    held_back_ = chunk;
    return absl::OkStatus();
  }
  void WhenDurable(Done done) override { real_->WhenDurable(std::move(done)); }
  absl::Status DropThroughStep(Step step) override { return real_->DropThroughStep(step); }
  uint64_t bytes() const override { return real_->bytes(); }
  std::string full() const override { return real_->full(); }

 private:
  const std::unique_ptr<PushJournal> real_;
  std::optional<wire::PushChunk> held_back_;
};

}  // namespace

SabotagedJournals::SabotagedJournals(std::unique_ptr<JournalOpener> real, ServerIndex server,
                                     Saboteur* saboteur)
    : real_(std::move(real)), server_(server), saboteur_(saboteur) {}

absl::StatusOr<std::unique_ptr<PushJournal>> SabotagedJournals::Open(const JournalSpec& spec,
                                                                     Visit visit) {
  const auto sabotaged_visit = [&](wire::PushChunk&& chunk) -> absl::Status {
    if (saboteur_->RepeatsNow()) RETURN_IF_ERROR(visit(wire::PushChunk(chunk)));
    return visit(saboteur_->TamperReplayed(server_, std::move(chunk)));
  };
  ASSIGN_OR_RETURN(std::unique_ptr<PushJournal> journal, real_->Open(spec, sabotaged_visit));
  if (!saboteur_->Has(PlantedFault::kLoggedLate)) return journal;
  return std::make_unique<LateJournal>(std::move(journal));
}

}  // namespace thermocline

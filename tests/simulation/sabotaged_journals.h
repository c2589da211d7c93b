// Journals that a Saboteur has been at.
#ifndef THERMOCLINE_TESTS_SIMULATION_SABOTAGED_JOURNALS_H_
#define THERMOCLINE_TESTS_SIMULATION_SABOTAGED_JOURNALS_H_

#include <memory>

#include "absl/status/statusor.h"
#include "common/base/ids.h"
#include "server/storage/journal_opener.h"
#include "tests/simulation/saboteur.h"

namespace thermocline {

class SabotagedJournals : public JournalOpener {
 public:
  // `saboteur` outlives this.
  SabotagedJournals(std::unique_ptr<JournalOpener> real, ServerIndex server, Saboteur* saboteur);

  absl::StatusOr<std::unique_ptr<PushJournal>> Open(const JournalSpec& spec, Visit visit) override;

 private:
  const std::unique_ptr<JournalOpener> real_;
  const ServerIndex server_;
  Saboteur* const saboteur_;
};

}  // namespace thermocline

#endif  // THERMOCLINE_TESTS_SIMULATION_SABOTAGED_JOURNALS_H_

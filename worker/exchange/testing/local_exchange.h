// Makes the exchanges of all ranks of a job in one process, over a queue instead of a network, for
// tests.
#ifndef THERMOCLINE_WORKER_EXCHANGE_TESTING_LOCAL_EXCHANGE_H_
#define THERMOCLINE_WORKER_EXCHANGE_TESTING_LOCAL_EXCHANGE_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "common/base/ids.h"
#include "common/base/scheduler.h"
#include "worker/exchange/exchange.h"

namespace thermocline {

// Returns the exchanges by rank. [num_ranks] Each has `options` with its own rank and their number.
// Streams between them break only when one of them is destroyed. `scheduler` must outlive them.
using HooksOf = std::function<ExchangeHooks(WorkerRank rank)>;
std::vector<std::unique_ptr<Exchange>> MakeLocalExchanges(uint32_t num_ranks,
                                                          ExchangeOptions options,
                                                          Scheduler* scheduler,
                                                          const HooksOf& hooks_of = nullptr);

}  // namespace thermocline

#endif  // THERMOCLINE_WORKER_EXCHANGE_TESTING_LOCAL_EXCHANGE_H_

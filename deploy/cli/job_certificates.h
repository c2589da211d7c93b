// The certificates of a job that asks for them (cluster.tls.automatic), in its run directory.
#ifndef THERMOCLINE_DEPLOY_CLI_JOB_CERTIFICATES_H_
#define THERMOCLINE_DEPLOY_CLI_JOB_CERTIFICATES_H_

#include <string>

#include "absl/status/status.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "deploy/processes/run_directory.h"
#include "proto/job.pb.h"

namespace thermocline {

// Where cluster.tls.automatic asks for them: makes new certificates for the job's processes on this
// machine, in RUN_DIR/certificates, in place of those of an earlier start. Their authority's key is
// not kept; one that is there already signs them. Errors: kUnavailable (names the file),
// kFailedPrecondition (the authority there is another job's).
absl::Status MakeCertificates(const RunDirectory& directory, Job* job);

// The same for a job over several hosts: there for agents and readers, and, where `listen`
// (host:port) is not empty, for a controller on this machine. Its servers and workers get theirs
// from the controller, which finds the authority's key (ca.key) there. What is there already, but
// for the controller's, stays as long as it is the job's and valid for kLeastValidity more.
// Errors: also kInvalidArgument.
inline constexpr absl::Duration kLeastValidity = absl::Hours(24 * 90);
absl::Status MakeJoinCertificates(const RunDirectory& directory, const std::string& listen,
                                  Job* job, absl::Time now = absl::Now());

}  // namespace thermocline

#endif  // THERMOCLINE_DEPLOY_CLI_JOB_CERTIFICATES_H_

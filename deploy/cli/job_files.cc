#include "deploy/cli/job_files.h"

#include <unistd.h>

#include <cerrno>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <optional>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "common/arrow/object_store.h"
#include "common/arrow/parquet.h"
#include "common/base/status_macros.h"
#include "common/data/data_identity.h"
#include "common/disk/file_list.h"
#include "common/job/job_data.h"
#include "common/job/resolved_job.h"
#include "common/net/tls_files.h"
#include "common/process/child_process.h"
#include "deploy/nodes/node_processes.h"

namespace thermocline {
namespace {

// The first of test_*.npy in the folder of an npy job's data, in either form; "": there is none.
std::string HeldOutFile(const Data& data) {
  if (!IsNpy(data)) return "";
  const std::filesystem::path folder(DescribeData(data).train().path(0));
  for (const char* name : {"test_dense.npy", "test_sparse.npy", "test_labels.npy"}) {
    if (std::filesystem::exists(folder / name)) return name;
  }
  return "";
}

// Finds an unreadable file before the processes start, each of which would fail on it.
absl::Status CheckReadable(const std::string& field, const std::string& path) {
  if (path.empty() || access(path.c_str(), R_OK) == 0) return absl::OkStatus();
  return absl::NotFoundError(absl::StrCat(field, " '", path, "': ", std::strerror(errno)));
}

// The files that a path of `data` stands for: a folder or a pattern, here or in an object store.
absl::StatusOr<std::vector<std::string>> ListAt(const Data& data, const std::string& path) {
  if (!IsObjectPath(path)) return ListFiles(path);
  RETURN_IF_ERROR(RequireArrow(path));
  ASSIGN_OR_RETURN(const std::unique_ptr<ObjectStore> store, ObjectStore::Open(data.s3()));
  return store->List(path);
}

absl::Status CheckFilesAt(const Data& data, const std::string& field, const std::string& path) {
  const auto files = ListAt(data, path);
  if (!files.ok()) {
    return absl::Status(files.status().code(), absl::StrCat(field, " ", files.status().message()));
  }
  for (const std::string& file : *files) {
    if (data.train().has_parquet()) RETURN_IF_ERROR(RequireArrow(file));
    if (!IsObjectPath(file)) RETURN_IF_ERROR(CheckReadable(field, file));
  }
  return absl::OkStatus();
}

// Held-out rows come from files of their own or from a share of the others, not from both.
absl::Status CheckHeldOut(const Job& job) {
  const Data data = DescribeData(job.data());
  const std::string own = HeldOutFile(data);
  const double share = data.split().last_share();
  if (own.empty() || share == 0) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(job.data().has_train() ? "data.split.last_share is " : "data.test_share is ",
                   share, ", and ", data.train().path(0), " has ", own, " as well; choose one"));
}

// The files of either form of `written`; errors name the fields of the form that the job has.
absl::Status CheckDataFiles(const Data& written) {
  const Data data = DescribeData(written);
  const bool is_described = written.has_train();
  for (const std::string& path : data.train().path()) {
    const char* const field = is_described ? "data.train.path" : "data.path";
    if (!IsNpy(data)) {
      RETURN_IF_ERROR(CheckFilesAt(data, field, path));
      continue;
    }
    RETURN_IF_ERROR(CheckReadable(field, path));
    if (std::filesystem::is_directory(path)) continue;
    return absl::InvalidArgumentError(
        absl::StrCat(field, " '", path, "' is not a folder; npy reads a folder"));
  }
  for (const std::string& path : data.test().path()) {
    RETURN_IF_ERROR(CheckFilesAt(data, is_described ? "data.test.path" : "data.test_path", path));
  }
  return absl::OkStatus();
}

// "'a.csv'", or "'a.csv' and 2 more paths".
std::string Paths(const Data::Files& files) {
  return files.path_size() == 1
             ? absl::StrCat("'", files.path(0), "'")
             : absl::StrCat("'", files.path(0), "' and ", files.path_size() - 1, " more paths");
}

// Each process would end with what is wrong with its certificate; this is earlier, and names it
// once.
absl::Status CheckCertificates(const std::string& job, const Tls& tls) {
  if (tls.automatic()) return absl::OkStatus();
  for (const Role role : {Role::kController, Role::kServer, Role::kWorker}) {
    const TlsFiles files = TlsFilesOf(tls, role);
    if (files.empty()) return absl::OkStatus();
    // Where the authority's key is, the controller signs those of other hosts.
    std::error_code error;
    if (role != Role::kController && !std::filesystem::exists(files.certificate, error) &&
        HasAuthority(tls.directory())) {
      continue;
    }
    for (const TlsUse use : {TlsUse::kServer, TlsUse::kClient}) {
      ASSIGN_OR_RETURN(const TlsTexts texts, ReadTlsFiles(files, use));
      const std::optional<Identity> named = IdentityOf(texts.certificate);
      if (!named.has_value() || *named == Identity{job, role}) continue;
      return absl::InvalidArgumentError(absl::StrCat(
          "the TLS certificate '", files.certificate, "' is for the ", RoleName(named->role),
          " of job '", named->job, "', not for the ", RoleName(role), " of job '", job,
          tls.directory().empty() ? "' (cluster.tls.directory names a folder with one "
                                    "certificate for each role)"
                                  : "'"));
    }
  }
  return absl::OkStatus();
}

}  // namespace

void MakePathsAbsolute(Job* job) {
  Data* const data = job->mutable_data();
  for (std::string* path : {data->mutable_path(), data->mutable_test_path()}) {
    *path = AbsolutePath(*path);
  }
  const auto make_absolute = [](Data::Files* files) {
    for (std::string& path : *files->mutable_path()) path = AbsolutePath(path);
  };
  if (data->has_train()) make_absolute(data->mutable_train());
  if (data->has_test()) make_absolute(data->mutable_test());
  job->set_init_from(AbsolutePath(job->init_from()));
  if (job->has_worker()) {
    const std::string& directory = job->worker().directory();
    job->mutable_worker()->set_directory(AbsolutePath(directory.empty() ? "." : directory));
  }
  if (job->has_checkpoint()) {
    std::string* directory = job->mutable_checkpoint()->mutable_directory();
    *directory = AbsolutePath(*directory);
  }
  if (job->has_calibration()) {
    std::string* directory = job->mutable_calibration()->mutable_directory();
    *directory = AbsolutePath(*directory);
  }
  if (!job->cluster().has_tls()) return;
  Tls* tls = job->mutable_cluster()->mutable_tls();
  for (std::string* path : {tls->mutable_certificate(), tls->mutable_private_key(),
                            tls->mutable_ca(), tls->mutable_directory()}) {
    *path = AbsolutePath(*path);
  }
}

absl::Status CheckJobFiles(const Job& job) {
  RETURN_IF_ERROR(CheckDataFiles(job.data()));
  RETURN_IF_ERROR(CheckHeldOut(job));
  const std::string& directory = job.worker().directory();
  RETURN_IF_ERROR(CheckReadable("worker.directory", directory));
  if (!directory.empty() && !std::filesystem::is_directory(directory)) {
    return absl::InvalidArgumentError(
        absl::StrCat("worker.directory '", directory, "' is not a folder"));
  }
  const Tls& tls = job.cluster().tls();
  RETURN_IF_ERROR(CheckReadable("cluster.tls.certificate", tls.certificate()));
  RETURN_IF_ERROR(CheckReadable("cluster.tls.private_key", tls.private_key()));
  RETURN_IF_ERROR(CheckReadable("cluster.tls.ca", tls.ca()));
  return CheckCertificates(job.name(), tls);
}

absl::Status CheckScriptProgram(const Job& job) {
  if (!job.has_worker()) return absl::OkStatus();
  const absl::Status found =
      FindCommand(job.worker().command(0), job.worker().directory()).status();
  if (found.ok()) return found;
  return absl::Status(found.code(), absl::StrCat("worker.command: ", found.message()));
}

absl::Status FindDataFiles(Job* job) {
  job->clear_data_files();
  ASSIGN_OR_RETURN(*job->mutable_data_files(), IdentifyData(*job));
  return absl::OkStatus();
}

void ScoreAllRows(Data* data) {
  if (!IsNpy(*data)) {
    if (data->has_train()) {
      *data->mutable_test() = data->train();
      data->clear_split();
    } else {
      data->set_test_path(data->path());
      data->set_test_share(0);
    }
    return;
  }
  // In a folder with test_*.npy their rows are scored; if there are none, all rows are, from row
  // int(rows * (1 - test_share)) on.
  if (!HeldOutFile(*data).empty()) return;
  const double all = std::nextafter(1.0, 0.0);
  data->has_train() ? data->mutable_split()->set_last_share(all) : data->set_test_share(all);
}

std::string DescribeScoredRows(const Data& written) {
  const Data data = DescribeData(written);
  if (data.has_test()) return absl::StrCat("all rows of ", Paths(data.test()));
  const std::string& first = data.train().path(0);
  if (!HeldOutFile(data).empty()) return absl::StrCat("all rows of '", first, "/test_*.npy'");
  const std::string rows = absl::StrCat(
      "rows of ", IsNpy(data) ? absl::StrCat("'", first, "/train_*.npy'") : Paths(data.train()));
  const Data::Split& split = data.split();
  if (!split.column().empty()) {
    return absl::StrCat("the ", rows, " whose ", split.column(), " is ", split.test_from(),
                        " or more (data.split)");
  }
  if (IsNpy(data) && split.last_share() > 1 - 1e-9) return absl::StrCat("all ", rows);
  return absl::StrCat("the last ", split.last_share() * 100, "% of the ", rows,
                      written.has_train() ? " (data.split.last_share)" : " (data.test_share)");
}

}  // namespace thermocline

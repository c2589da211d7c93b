// Real connections over TLS: each role against each method.
#include "common/net/roles.h"

#include <google/protobuf/descriptor.h>
#include <grpcpp/generic/generic_stub.h>
#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "common/net/grpc_server.h"
#include "common/net/rpc.h"
#include "common/net/tls_files.h"
#include "proto/node.grpc.pb.h"
#include "proto/parameter_server.grpc.pb.h"
#include "tests/testing/test_certificates.h"

namespace thermocline {
namespace {

constexpr char kPush[] = "/thermocline.ParameterServer/Push";

// All methods of the services, which answer UNIMPLEMENTED: who hears that was let in.
class Doors {
 public:
  explicit Doors(const TlsFiles& tls, const std::string& job_id = "") {
    GrpcServer::Options options;
    options.tls = tls;
    options.job_id = job_id;
    auto started = GrpcServer::Start(options, {&server_, &worker_, &controller_});
    EXPECT_TRUE(started.ok()) << started.status();
    listening_ = *std::move(started);
  }

  absl::Status Call(const TlsFiles& tls, const std::string& method) const {
    const auto credentials = MakeChannelCredentials(tls);
    EXPECT_TRUE(credentials.ok()) << credentials.status();
    return Call(*credentials, method);
  }
  absl::Status Call(const std::shared_ptr<grpc::ChannelCredentials>& credentials,
                    const std::string& method) const {
    return Call(credentials, method, /*waits=*/false);
  }
  // Tries to connect until that succeeds; a minute at most.
  absl::Status Await(const std::shared_ptr<grpc::ChannelCredentials>& credentials,
                     const std::string& method) const {
    return Call(credentials, method, /*waits=*/true);
  }

 private:
  absl::Status Call(const std::shared_ptr<grpc::ChannelCredentials>& credentials,
                    const std::string& method, bool waits) const {
    grpc::GenericStub stub(
        OpenChannel(listening_->address(), credentials, kDefaultMaxMessageBytes));
    const grpc::Slice slice("");
    const grpc::ByteBuffer request(&slice, 1);
    grpc::ByteBuffer reply;
    grpc::ClientContext context;
    context.set_wait_for_ready(waits);
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::minutes(1));
    grpc::Status status;
    absl::Notification done;
    stub.UnaryCall(&context, method, grpc::StubOptions(), &request, &reply, [&](grpc::Status s) {
      status = s;
      done.Notify();
    });
    done.WaitForNotification();
    return FromGrpcStatus(status);
  }

  ParameterServer::Service server_;
  Worker::Service worker_;
  Controller::Service controller_;
  std::unique_ptr<GrpcServer> listening_;
};

std::string FolderOf(const std::string& name, const std::string& job) {
  const std::string folder = absl::StrCat(testing::TempDir(), "/roles-", name);
  std::filesystem::remove_all(folder);
  const absl::Status written = WriteCertificates(*CertificateAuthority::Create(job), folder,
                                                 {std::begin(kAllRoles), std::end(kAllRoles)},
                                                 {"127.0.0.1"}, absl::Hours(1));
  EXPECT_TRUE(written.ok()) << written;
  return folder;
}

// The full names of the services' methods.
std::vector<std::string> AllMethods() {
  std::vector<std::string> methods;
  for (const std::string service : {ParameterServer::service_full_name(),
                                    Worker::service_full_name(), Controller::service_full_name()}) {
    const auto* const found =
        google::protobuf::DescriptorPool::generated_pool()->FindServiceByName(service);
    for (int i = 0; i < found->method_count(); ++i) {
      methods.push_back(absl::StrCat("/", service, "/", found->method(i)->name()));
    }
  }
  return methods;
}

TEST(Roles, MayCallWhatIsTheirs) {
  const std::string server = "/thermocline.ParameterServer/", worker = "/thermocline.Worker/",
                    controller = "/thermocline.Controller/";
  const std::map<Role, std::vector<std::string>> allowed = {
      {Role::kController,
       {server + "Configure", server + "GetStats", server + "GetDigest", server + "Checkpoint",
        worker + "GetStats", worker + "Checkpoint", worker + "Decide", worker + "Introduce",
        controller + "GetLog"}},
      {Role::kWorker,
       {server + "Pull", server + "Push", server + "GetStats",
        server + "Configure",  // To look: check_only.
        worker + "Exchange"}},
      {Role::kReader,
       {server + "Pull", server + "GetStats", worker + "GetStats", controller + "GetLog"}},
      {Role::kServer, {}},
      {Role::kNode, {controller + "Attach"}},
  };
  const std::string folder = FolderOf("table", "job");
  const Doors doors(TlsFilesIn(folder, Role::kServer));
  ASSERT_EQ(AllMethods().size(), 13u) << "a new method needs a line in roles.cc, and here";
  for (const Role role : kAllRoles) {
    const TlsFiles tls = TlsFilesIn(folder, role);
    for (const std::string& method : AllMethods()) {
      const auto& mine = allowed.at(role);
      const bool may = std::find(mine.begin(), mine.end(), method) != mine.end();
      const absl::Status status = doors.Call(tls, method);
      EXPECT_EQ(status.code(),
                may ? absl::StatusCode::kUnimplemented : absl::StatusCode::kPermissionDenied)
          << RoleName(role) << " " << method << ": " << status;
      if (may) continue;
      EXPECT_TRUE(absl::StrContains(status.message(), absl::StrCat("role ", RoleName(role))) &&
                  absl::StrContains(status.message(), method.substr(method.rfind('/') + 1)))
          << status;
    }
    EXPECT_TRUE(doors.Call(tls, "/grpc.health.v1.Health/Check").ok()) << RoleName(role);
    EXPECT_EQ(doors.Call(tls, "/thermocline.ParameterServer/NoSuchMethod").code(),
              absl::StatusCode::kPermissionDenied);
  }
}

TEST(Roles, RefusalsSayWhoMay) {
  const std::string folder = FolderOf("says", "job");
  const Doors doors(TlsFilesIn(folder, Role::kServer));
  EXPECT_EQ(
      doors.Call(TlsFilesIn(folder, Role::kReader), "/thermocline.ParameterServer/Push").message(),
      "role reader may not call Push; it is for worker");
  EXPECT_EQ(doors.Call(TlsFilesIn(folder, Role::kNode), "/other.Service/Do").message(),
            "role node may not call Do; no role may");
}

TEST(Roles, OtherJobsAreRefused) {
  // One authority of the user's for two jobs: the certificates are signed by both authorities'
  // keys.
  const std::string one = FolderOf("one", "one");
  const Doors doors(TlsFilesIn(one, Role::kServer));
  const std::string health = "/grpc.health.v1.Health/Check";
  EXPECT_TRUE(doors.Call(TlsFilesIn(one, Role::kController), health).ok());
  EXPECT_EQ(MakeServerCredentials(TlsFilesIn(one, Role::kServer), "two").status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(MakeServerCredentials(TlsFilesIn(one, Role::kServer), "one").ok());

  // A server with a certificate of the user's own, who signs those of two jobs.
  const TlsFiles own = MakeTestCertificates(testing::TempDir(), "signs-two");
  const TlsFiles two = SignTestCertificate(testing::TempDir(), "signs-two", "of-two",
                                           "thermocline://two/controller");
  for (const char* job : {"one", "two", ""}) {
    const absl::Status status = Doors(own, job).Call(two, health);
    if (std::string(job) != "one") {
      EXPECT_TRUE(status.ok()) << status;
      continue;
    }
    EXPECT_EQ(status, absl::PermissionDeniedError("the peer's certificate is of job 'two', this "
                                                  "process of job 'one'"));
  }
}

// Files of a process that runs: they are renewed under it.
class RenewedFiles {
 public:
  explicit RenewedFiles(const std::string& name)
      : folder_(absl::StrCat(testing::TempDir(), "/roles-renewed-", name)) {
    std::filesystem::remove_all(folder_);
    std::filesystem::create_directories(folder_);
  }
  TlsFiles Renew(const CertificateAuthority& authority, Role role, const std::string& host) const {
    const TlsFiles files = TlsFilesIn(folder_, role);
    const auto made = MakeKeyAndRequest();
    const auto certificate = authority.Sign(made->request, role, {host}, absl::Hours(1));
    EXPECT_TRUE(WritePrivateFile(files.private_key, made->private_key, true).ok());
    EXPECT_TRUE(WritePrivateFile(files.certificate, *certificate, true).ok());
    EXPECT_TRUE(WritePrivateFile(files.ca, authority.ca_pem(), true).ok());
    return files;
  }

 private:
  const std::string folder_;
};

// Calls wait until a connection succeeds, which the first files allow to none.
TEST(Roles, RenewedFilesAreTakenByServersThatRun) {
  const auto authority = *CertificateAuthority::Create("job");
  const RenewedFiles files("server");
  const Doors doors(files.Renew(authority, Role::kServer, "127.0.0.2"));
  const auto client = *MakeChannelCredentials(files.Renew(authority, Role::kWorker, "127.0.0.1"));
  EXPECT_EQ(doors.Call(client, kPush).code(), absl::StatusCode::kUnavailable);
  files.Renew(authority, Role::kServer, "127.0.0.1");
  EXPECT_EQ(doors.Await(client, kPush).code(), absl::StatusCode::kUnimplemented);
}

TEST(Roles, RenewedFilesAreTakenByClientsThatRun) {
  const auto authority = *CertificateAuthority::Create("job");
  const auto stranger = *CertificateAuthority::Create("job");
  const RenewedFiles ours("ours"), theirs("theirs");
  const Doors doors(ours.Renew(authority, Role::kServer, "127.0.0.1"));
  const auto client = theirs.Renew(stranger, Role::kWorker, "127.0.0.1");
  const auto credentials = *MakeChannelCredentials(client);
  EXPECT_EQ(doors.Call(credentials, kPush).code(), absl::StatusCode::kUnavailable);
  theirs.Renew(authority, Role::kWorker, "127.0.0.1");
  EXPECT_EQ(doors.Await(credentials, kPush).code(), absl::StatusCode::kUnimplemented);
}

TEST(Roles, ACertificateWithoutARoleMayDoEverything) {
  const TlsFiles own = MakeTestCertificates(testing::TempDir(), "no-role");
  const Doors doors(own, "job");
  for (const std::string& method : AllMethods()) {
    EXPECT_EQ(doors.Call(own, method).code(), absl::StatusCode::kUnimplemented) << method;
  }
}

TEST(Roles, NamesThatAreNoRoleAreRefused) {
  const TlsFiles own = MakeTestCertificates(testing::TempDir(), "strange");
  const Doors doors(own, "job");
  const std::string method = "/thermocline.ParameterServer/GetStats";
  const auto call = [&](const std::string& name, const std::string& uris) {
    return doors.Call(SignTestCertificate(testing::TempDir(), "strange", name, uris), method);
  };
  EXPECT_EQ(call("known", "thermocline://job/reader").code(), absl::StatusCode::kUnimplemented);
  EXPECT_EQ(call("other", "https://example.org/worker").code(), absl::StatusCode::kUnimplemented);
  EXPECT_EQ(call("root", "thermocline://job/root"),
            absl::PermissionDeniedError(
                "the peer's certificate names thermocline://job/root, which is no role"));
  EXPECT_EQ(call("two", "thermocline://job/reader,URI:thermocline://job/controller").code(),
            absl::StatusCode::kPermissionDenied);
}

}  // namespace
}  // namespace thermocline

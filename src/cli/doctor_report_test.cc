#include "cli/doctor_report.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cerrno>

#include "base/json.h"

namespace pctx::cli {
namespace {

Diagnosis healthy() {
  Diagnosis diagnosis;
  HostFacts& facts = diagnosis.facts;
  facts.host.uid = 1000;
  facts.host.kernel = "6.8.0";
  facts.host.kernel_major = 6;
  facts.host.kernel_minor = 8;
  facts.host.landlock_abi = 4;
  facts.host.subuid = facts.host.subgid = IdRange{100000, 65536};
  facts.host.id_helpers = true;
  facts.host.cgroup.version = CgroupVersion::v2;
  facts.cgroups = CgroupVersion::v2;
  facts.controllers = {"cpu", "io", "memory", "pids"};
  facts.user = "ada";
  facts.program = "/home/ada/bin/pctx-sandbox";
  facts.apparmor_parser = true;
  for (ProbedLayer& layer : facts.layers) layer = {true, 0};
  Ending ending;
  for (LayerState& layer : ending.receipt.layers) layer = {true, "new"};
  diagnosis.trial.ending = ending;
  return diagnosis;
}

// Everything that can be wrong at once, so that the report is as long as it gets.
Diagnosis hopeless() {
  Diagnosis diagnosis = healthy();
  HostFacts& facts = diagnosis.facts;
  facts.host.kernel_major = 4;
  facts.host.apparmor = true;
  facts.host.subuid = std::nullopt;
  facts.host.id_helpers = false;
  facts.host.cgroup = {};
  facts.max_user_namespaces = facts.userns_clone = 0;
  facts.apparmor_restricts_userns = 1;
  facts.packages = PackageManager::apt;
  facts.systemd = facts.user_manager = true;
  facts.controllers = {};
  for (ProbedLayer& layer : facts.layers) layer = {false, EPERM};
  diagnosis.trial = {std::nullopt, unavailable("this host refuses to make the box's namespaces", "")};
  return diagnosis;
}

std::string last_line(const std::string& text) {
  const std::size_t end = text.rfind('\n');
  return text.substr(text.rfind('\n', end - 1) + 1, end - text.rfind('\n', end - 1) - 1);
}

TEST(DoctorReport, a_healthy_host_is_ready_and_says_so_last) {
  const Diagnosis diagnosis = healthy();
  EXPECT_TRUE(is_ready(diagnosis));
  EXPECT_EQ(last_line(report_text(diagnosis, false)), "ready: a box runs here with every required layer");
}

TEST(DoctorReport, a_box_that_ran_without_a_required_layer_is_not_ready) {
  Diagnosis diagnosis = healthy();
  diagnosis.trial.ending->receipt.layers[index(Layer::apparmor)].on = false;
  EXPECT_TRUE(is_ready(diagnosis)) << "AppArmor is not required";
  diagnosis.trial.ending->receipt.layers[index(Layer::seccomp)].on = false;
  EXPECT_FALSE(is_ready(diagnosis));
}

TEST(DoctorReport, probes_that_all_succeed_prove_nothing_when_no_box_ran) {
  Diagnosis diagnosis = healthy();
  diagnosis.trial = {std::nullopt, unavailable("cause", "next step")};
  EXPECT_FALSE(is_ready(diagnosis));
  EXPECT_EQ(verdict(diagnosis), "not ready: cause; next step");
}

TEST(DoctorReport, the_last_line_names_the_first_fix) {
  Diagnosis diagnosis = hopeless();
  diagnosis.facts.host.kernel_major = 6;
  diagnosis.facts.max_user_namespaces = 60000;
  EXPECT_EQ(last_line(report_text(diagnosis, false)),
            "not ready: only root may make user namespaces (kernel.unprivileged_userns_clone = 0); first fix: printf "
            "'kernel.unprivileged_userns_clone = 1\\n' | sudo tee /etc/sysctl.d/60-pctx-sandbox-userns.conf");
  diagnosis.facts.userns_clone = std::nullopt;
  EXPECT_NE(last_line(report_text(diagnosis, false))
                .find("first fix: sudo /home/ada/bin/pctx-sandbox setup   # writes /etc/apparmor.d/pctx-sandbox, "
                      "apparmor_parser -r /etc/apparmor.d/pctx-sandbox"),
            std::string::npos)
      << report_text(diagnosis, false);
}

TEST(DoctorReport, fits_a_screen_and_has_no_colour_unless_asked) {
  const std::string text = report_text(hopeless(), false);
  EXPECT_LE(std::count(text.begin(), text.end(), '\n'), 55) << text;
  const std::string usual = report_text(healthy(), false);
  EXPECT_LE(std::count(usual.begin(), usual.end(), '\n'), 40) << usual;
  EXPECT_EQ(text.find('\033'), std::string::npos);
  EXPECT_NE(report_text(healthy(), true).find('\033'), std::string::npos);
}

TEST(DoctorReport, where_no_box_ran_each_layer_says_the_cause_and_not_what_the_kernel_answered) {
  Diagnosis diagnosis = healthy();
  diagnosis.trial = {std::nullopt, unavailable("cause", "next step")};
  HostFacts& facts = diagnosis.facts;
  facts.max_user_namespaces = 0;
  facts.host.subuid = std::nullopt;
  facts.host.cgroup = {.why_none = "no cgroup is delegated to this user"};
  for (ProbedLayer& layer : facts.layers) layer = {false, ENOSPC};
  const std::string text = report_text(diagnosis, false);
  for (const char* line :
       {"OFF user             user namespaces are switched off (user.max_user_namespaces = 0)",
        "OFF pid              not tried: it takes a user namespace", "OFF proc             not tried: it takes a user",
        "off subordinate-ids  newuidmap is installed, no ids for this user",
        "off cgroups          no cgroup is delegated to this user",
        "off apparmor         this kernel has no AppArmor, or it is switched off"})
    EXPECT_NE(text.find(line), std::string::npos) << line << "\n" << text;
  // The control: where nothing better is known, that answer is all there is.
  facts.layers[index(Layer::user)] = {true, 0};
  EXPECT_NE(report_text(diagnosis, false).find("OFF ipc              refused: No space left on device"),
            std::string::npos)
      << report_text(diagnosis, false);
}

TEST(DoctorReport, json_names_every_layer_and_holds_the_same_verdict) {
  const auto json = Json::parse(report_json(hopeless()));
  EXPECT_FALSE(json["ready"].get<bool>());
  EXPECT_EQ(json["layers"].size(), kLayers.size());
  EXPECT_EQ(json["verdict"].get<std::string>(), verdict(hopeless()));
  EXPECT_FALSE(json["trial"]["ran"].get<bool>());
  EXPECT_TRUE(json["remedies"][0]["blocks"].get<bool>());
}

TEST(DoctorReport, root_is_told_what_an_ordinary_user_would_get) {
  Diagnosis diagnosis = healthy();
  diagnosis.facts.host.uid = 0;
  diagnosis.facts.host.privileged = true;
  diagnosis.user = hopeless().facts;
  diagnosis.user->host.kernel_major = 6;
  const std::string text = report_text(diagnosis, false);
  EXPECT_NE(text.find("\nada: no box runs: user namespaces are switched off"), std::string::npos) << text;
  EXPECT_TRUE(is_ready(diagnosis)) << "root's own boxes run";
}

TEST(DoctorReport, root_is_told_where_the_fixes_of_a_user_stand_that_are_not_shown) {
  Diagnosis diagnosis = healthy();
  diagnosis.facts.host.uid = 0;
  diagnosis.facts.host.privileged = true;
  diagnosis.user = healthy().facts;
  const auto summary = [&] {
    return Json::parse(report_json(diagnosis))["ordinary_user"]["summary"].get<std::string>();
  };
  EXPECT_EQ(summary(), "ada: a box runs with every required layer");
  // What setup can do for this user is shown below the sentence.
  diagnosis.user->host.subuid = std::nullopt;
  diagnosis.user->layers[index(Layer::subordinate_ids)] = {false, ENOENT};
  EXPECT_EQ(summary(), "ada: a box runs with every required layer; to be improved: subordinate-ids");
  EXPECT_NE(report_text(diagnosis, false).find("      usermod --add-subuids"), std::string::npos);
  // A boot with cgroup v2 is not, and nothing is for users in general.
  diagnosis.user->host.cgroup = {};
  diagnosis.user->layers[index(Layer::cgroups)] = {false, ENOENT};
  diagnosis.user->cgroups = CgroupVersion::v1;
  EXPECT_EQ(summary(),
            "ada: a box runs with every required layer; to be improved: subordinate-ids, cgroups (run 'doctor' as that "
            "user for how)");
  diagnosis.user->user = "";
  diagnosis.user->any_user = true;
  EXPECT_EQ(
      summary(),
      "ordinary users: a box runs with every required layer; to be improved: cgroups (run 'doctor' as one of them "
      "for how)");
}

TEST(DoctorReport, selinux_is_named_where_it_is_and_keeps_nothing_from_running) {
  Diagnosis diagnosis = healthy();
  EXPECT_EQ(report_text(diagnosis, false).find("selinux"), std::string::npos);
  diagnosis.facts.selinux_enforces = true;
  EXPECT_NE(report_text(diagnosis, false).find("selinux          enforcing"), std::string::npos);
  EXPECT_TRUE(is_ready(diagnosis));
  diagnosis.facts.selinux_enforces = false;
  EXPECT_NE(report_text(diagnosis, false).find("selinux          permissive"), std::string::npos);
}

}  // namespace
}  // namespace pctx::cli

// Licensed under the Apache License, Version 2.0; see LICENSE.
// dycl-rpc-server: TVM's RPC server for machines without Python.
#include <unistd.h>

#include <climits>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <string>

#include "server.h"

namespace {

using dycl::rpc::Address;
using dycl::rpc::ParseAddress;
using dycl::rpc::ServerOptions;

const char kHelp[] =
    "usage: dycl-rpc-server [options]\n"
    "  --host ADDRESS       address to listen on (127.0.0.1: this machine alone; 0.0.0.0: all "
    "networks)\n"
    "  --port PORT          port to listen on (9090; 0: any that is free)\n"
    "  --key KEY            what clients must say: tvm.rpc.connect(host, port, key=KEY)\n"
    "  --tracker HOST:PORT  report to this tracker under KEY; clients then ask the tracker\n"
    "  --custom-addr HOST   the name of this machine that the tracker tells clients\n"
    "  --sessions N         clients at once (2); more wait\n"
    "  --memory MIB         memory of one session (three quarters of the machine's; 0: no bound)\n"
    "  --timeout SECONDS    end sessions that last longer (0: no bound)\n"
    "  --work FOLDER        where the folders of sessions are made (TMPDIR, or /tmp)\n"
    "  --libs FOLDER        where libtvm_ffi.so and libtvm_runtime.so are (lib beside this "
    "program)\n"
    "\n"
    "Clients can run any code that they upload, and the key goes over the network unencrypted: "
    "listen on\n"
    "networks that you trust only, or on this machine behind an SSH tunnel.\n";

std::string FolderOfProgram() {
  char path[PATH_MAX];
  ssize_t size = readlink("/proc/self/exe", path, sizeof(path));
  std::string program(path, size > 0 ? static_cast<size_t>(size) : 0);
  size_t slash = program.rfind('/');
  return slash == std::string::npos ? "." : program.substr(0, slash);
}

uint64_t ThreeQuartersOfMemory() {
  long pages = sysconf(_SC_PHYS_PAGES), size = sysconf(_SC_PAGE_SIZE);
  return pages > 0 && size > 0 ? static_cast<uint64_t>(pages) / 4 * 3 * static_cast<uint64_t>(size)
                               : 0;
}

// A key is part of the handshake and of the tracker's JSON.
bool IsKey(const std::string& text) {
  if (text.size() > 200) return false;
  for (char c : text) {
    if (c <= ' ' || c > '~' || c == '"' || c == '\\') return false;
  }
  return true;
}

bool Number(const std::string& text, long least, long most, long* out) {
  char* end = nullptr;
  *out = strtol(text.c_str(), &end, 10);
  return !text.empty() && *end == '\0' && *out >= least && *out <= most;
}

int Wrong(const std::string& why) {
  fprintf(stderr, "dycl-rpc-server: %s\n%s", why.c_str(), kHelp);
  return 2;
}

}  // namespace

int main(int argc, char** argv) {
  ServerOptions options;
  options.libraries = FolderOfProgram() + "/lib";
  options.memory = ThreeQuartersOfMemory();
  if (const char* folder = getenv("TMPDIR")) options.work = folder;
  for (int i = 1; i < argc; ++i) {
    std::string name = argv[i];
    if (name == "--help" || name == "-h") return fputs(kHelp, stdout) < 0;
    if (i + 1 == argc) return Wrong(name + " needs a value, or is not an option");
    std::string value = argv[++i];
    long number = 0;
    bool good = true;
    if (name == "--host") {
      options.listen.host = value;
    } else if (name == "--port") {
      good = Number(value, 0, 65535, &number);
      options.listen.port = static_cast<int>(number);
    } else if (name == "--key") {
      good = IsKey(value);
      options.key = value;
    } else if (name == "--tracker") {
      good = ParseAddress(value, &options.tracker) && options.tracker.port != 0;
    } else if (name == "--custom-addr") {
      good = IsKey(value);
      options.custom_address = value;
    } else if (name == "--sessions") {
      good = Number(value, 1, 64, &number);
      options.sessions = static_cast<int>(number);
    } else if (name == "--memory") {
      good = Number(value, 0, 1L << 30, &number);
      options.memory = static_cast<uint64_t>(number) << 20;
    } else if (name == "--timeout") {
      good = Number(value, 0, 1L << 30, &number);
      options.max_timeout = static_cast<int>(number);
    } else if (name == "--work") {
      options.work = value;
    } else if (name == "--libs") {
      options.libraries = value;
    } else {
      return Wrong("there is no option " + name);
    }
    if (!good) return Wrong("'" + value + "' is not a value of " + name);
  }
  if (options.tracker.port != 0 && options.key.empty()) return Wrong("--tracker needs --key");
  return dycl::rpc::Server(options).Run();
}

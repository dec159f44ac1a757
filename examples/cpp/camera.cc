// Licensed under the Apache License, Version 2.0; see LICENSE.
// A loop over the frames of a camera: one thread grabs, one runs the model, and a frame that comes
// while the model is busy replaces the one that waits. What the loop needs is allocated before it
// begins.
//
//   camera model.so [model.params] [--frames n] [--rate frames_per_second]
//
// The camera is made of random numbers. For a real one write another Grab(): it fills the memory of
// one frame, here a float32 tensor of the shape that the model takes.
#include <dycl/module.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <vector>

namespace {

using Clock = std::chrono::steady_clock;

struct Frame {
  std::vector<float> pixels;
  Clock::time_point grabbed;
};

// Three frames: one that the camera fills, one that waits, one that the model reads. They change
// places, nothing is copied.
class Mailbox {
 public:
  explicit Mailbox(size_t pixels) {
    for (Frame* frame : {&filling_, &waiting_, &reading_}) frame->pixels.resize(pixels);
  }

  Frame& filling() { return filling_; }

  void Post() {
    std::lock_guard<std::mutex> lock(mutex_);
    std::swap(filling_, waiting_);
    if (fresh_) ++dropped_;
    fresh_ = true;
    changed_.notify_one();
  }

  void Close() {
    std::lock_guard<std::mutex> lock(mutex_);
    closed_ = true;
    changed_.notify_one();
  }

  // The newest frame; null when there will be no more.
  Frame* Take() {
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait(lock, [this] { return fresh_ || closed_; });
    if (!fresh_) return nullptr;
    std::swap(waiting_, reading_);
    fresh_ = false;
    return &reading_;
  }

  int dropped() const { return dropped_; }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  Frame filling_, waiting_, reading_;
  bool fresh_ = false, closed_ = false;
  int dropped_ = 0;
};

void Grab(std::mt19937* engine, Frame* frame) {
  std::normal_distribution<float> brightness;
  for (float& pixel : frame->pixels) pixel = brightness(*engine);
  frame->grabbed = Clock::now();
}

void Camera(Mailbox* mailbox, int frames, double rate) {
  std::mt19937 engine(0);
  Clock::time_point next = Clock::now();
  for (int i = 0; i < frames; ++i) {
    Grab(&engine, &mailbox->filling());
    mailbox->Post();
    next += std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(1 / rate));
    std::this_thread::sleep_until(next);
  }
  mailbox->Close();
}

int Fail(const dycl::Status& status) {
  std::fprintf(stderr, "%s: %s\n", status.kind().c_str(), status.message().c_str());
  return 1;
}

}  // namespace

int main(int argc, char** argv) {
  std::vector<std::string> files;
  int frames = 100;
  double rate = 30;
  for (int i = 1; i < argc; ++i) {
    std::string word = argv[i];
    if (word == "--frames" && i + 1 < argc) {
      frames = std::atoi(argv[++i]);
    } else if (word == "--rate" && i + 1 < argc) {
      rate = std::atof(argv[++i]);
    } else {
      files.push_back(word);
    }
  }
  if (files.empty() || files.size() > 2 || rate <= 0) {
    std::fprintf(stderr, "usage: %s model.so [model.params] [--frames n] [--rate n]\n", argv[0]);
    return 2;
  }

  dycl::Result<dycl::Module> module =
      dycl::Module::Load(files[0], files.size() > 1 ? files[1] : "");
  if (!module.ok()) return Fail(module.status());
  dycl::Result<dycl::Session> session = module.value().NewSession();
  if (!session.ok()) return Fail(session.status());
  std::vector<dycl::InputSpec> specs = module.value().Inputs();
  if (specs.size() != 1 || specs[0].dtype.code != kDLFloat || specs[0].dtype.bits != 32) {
    return Fail(
        dycl::Status("InputError", "this loop is for models with one input, a float32 image"));
  }

  Mailbox mailbox(specs[0].bytes() / sizeof(float));
  DLTensor image = DLTensor();
  image.device.device_type = kDLCPU;
  image.ndim = static_cast<int32_t>(specs[0].shape.size());
  image.dtype = specs[0].dtype;
  image.shape = specs[0].shape.data();
  std::vector<DyclValue> inputs = {dycl::Tensor(image)};

  std::thread camera(Camera, &mailbox, frames, rate);
  std::vector<int> left;  // how often each return site was taken
  double worst = 0, sum = 0;
  int done = 0;
  dycl::Status failed;
  while (Frame* frame = mailbox.Take()) {
    image.data = frame->pixels.data();
    dycl::Result<int32_t> site = session.value().Run(inputs);
    if (!site.ok()) {
      failed = site.status();
      break;
    }
    double took = std::chrono::duration<double, std::milli>(Clock::now() - frame->grabbed).count();
    sum += took;
    worst = took > worst ? took : worst;
    ++done;
    if (left.size() <= static_cast<size_t>(site.value()))
      left.resize(static_cast<size_t>(site.value()) + 1);
    ++left[static_cast<size_t>(site.value())];
  }
  camera.join();
  if (!failed.ok()) return Fail(failed);
  std::printf(
      "%d frames, %d dropped; from grabbing to result %.3f ms on average, %.3f ms at worst\n", done,
      mailbox.dropped(), done > 0 ? sum / done : 0.0, worst);
  for (size_t k = 0; k < left.size(); ++k) std::printf("return site %zu: %d\n", k, left[k]);
  return 0;
}

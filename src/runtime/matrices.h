// Licensed under the Apache License, Version 2.0; see LICENSE.
// Factorisations of matrices, one of a batch after the other, of real and of complex numbers: what
// LAPACK's unblocked routines do, element by element. The order of rows (partial pivoting) and the
// signs (Householder reflections) are LAPACK's, so that factors are those of PyTorch. Complex
// numbers are pairs in a last dimension of two.
#ifndef DYCL_RUNTIME_MATRICES_H_
#define DYCL_RUNTIME_MATRICES_H_

#include <algorithm>
#include <cmath>
#include <complex>
#include <limits>
#include <new>
#include <numeric>
#include <type_traits>
#include <utility>
#include <vector>

#include "error.h"
#include "kernel_tensors.h"

namespace dycl::matrices {

template <class T>
struct Of {
  using Real = T;
  using Wide = double;
  static constexpr int kPlain = 0;  // dimensions of an element
};

template <class T>
struct Of<std::complex<T>> {
  using Real = T;
  using Wide = std::complex<double>;
  static constexpr int kPlain = 1;
};

template <class T>
using Real = typename Of<T>::Real;

template <class T>
T Conj(T x) {
  if constexpr (Of<T>::kPlain)
    return std::conj(x);
  else
    return x;
}

template <class T>
Real<T> Re(T x) {
  return std::real(x);
}

template <class T>
Real<T> Square(T x) {
  return std::norm(x);
}

// What LAPACK compares pivots by.
template <class T>
Real<T> Size(T x) {
  if constexpr (Of<T>::kPlain)
    return std::abs(x.real()) + std::abs(x.imag());
  else
    return std::abs(x);
}

// Products without the look for infinities that C++ asks for.
template <class T>
T Times(T a, T b) {
  if constexpr (Of<T>::kPlain) {
    return {a.real() * b.real() - a.imag() * b.imag(), a.real() * b.imag() + a.imag() * b.real()};
  } else {
    return a * b;
  }
}

template <class T>
struct Matrix {
  T* data;
  int64_t rows, columns;
  T& operator()(int64_t i, int64_t j) const { return data[i * columns + j]; }
};

// Operands and results of a kernel: batches of matrices, and of rows.
template <class T>
class Batches {
 public:
  explicit Batches(const TVMFFIAny* args) : a_(args) {}
  int64_t rows(int k) const { return a_.extent(k, 1 + Of<T>::kPlain); }
  int64_t columns(int k) const { return a_.extent(k, Of<T>::kPlain); }
  int64_t count(int k) const {
    int64_t one = rows(k) * columns(k) * (1 + Of<T>::kPlain);
    return one == 0 ? 0 : a_.size(k) / one;
  }
  Matrix<T> matrix(int k, int64_t b) const {
    return {a_.data<T>(k) + b * rows(k) * columns(k), rows(k), columns(k)};
  }
  template <class V>
  V* row(int k, int64_t b, int64_t length) const {
    return a_.data<V>(k) + b * length;
  }

 private:
  Arguments a_;
};

template <class T>
void Copy(Matrix<T> from, Matrix<T> to) {
  std::copy(from.data, from.data + from.rows * from.columns, to.data);
}

// a, lu, pivots, info: factors with partial pivoting, rows counted from 1, the first pivot that is
// 0.
template <class T>
int Lu(const TVMFFIAny* args) {
  Batches<T> all(args);
  for (int64_t b = 0; b < all.count(0); ++b) {
    const Matrix<T> lu = all.matrix(1, b);
    const int64_t m = lu.rows, n = lu.columns, least = std::min(m, n);
    auto* pivots = all.template row<int32_t>(2, b, least);
    auto* info = all.template row<int32_t>(3, b, 1);
    Copy(all.matrix(0, b), lu);
    *info = 0;
    for (int64_t k = 0; k < least; ++k) {
      int64_t at = k;
      for (int64_t i = k + 1; i < m; ++i) {
        if (Size(lu(i, k)) > Size(lu(at, k))) at = i;
      }
      pivots[k] = static_cast<int32_t>(at + 1);
      if (at != k) std::swap_ranges(&lu(k, 0), &lu(k, 0) + n, &lu(at, 0));
      const T pivot = lu(k, k);
      if (pivot == T(0) && *info == 0) *info = static_cast<int32_t>(k + 1);
      for (int64_t i = k + 1; i < m; ++i) {
        if (pivot != T(0)) lu(i, k) /= pivot;
        const T factor = lu(i, k);
        for (int64_t j = k + 1; j < n; ++j) lu(i, j) -= Times(factor, lu(k, j));
      }
    }
  }
  return 0;
}

// a, b, x with a x = b, where a counts on one side of its diagonal only.
template <class T>
int Triangular(const TVMFFIAny* args, bool upper, bool unit) {
  Batches<T> all(args);
  for (int64_t b = 0; b < all.count(0); ++b) {
    const Matrix<T> a = all.matrix(0, b), x = all.matrix(2, b);
    const int64_t n = a.rows;
    Copy(all.matrix(1, b), x);
    for (int64_t step = 0; step < n; ++step) {
      const int64_t i = upper ? n - 1 - step : step;
      for (int64_t j = upper ? i + 1 : 0; j < (upper ? n : i); ++j) {
        for (int64_t c = 0; c < x.columns; ++c) x(i, c) -= Times(a(i, j), x(j, c));
      }
      for (int64_t c = 0; c < x.columns && !unit; ++c) x(i, c) /= a(i, i);
    }
  }
  return 0;
}

// a, l, info: the lower factor of what stands below the diagonal, and the first minor that is not
// positive.
template <class T>
int Cholesky(const TVMFFIAny* args) {
  Batches<T> all(args);
  for (int64_t b = 0; b < all.count(0); ++b) {
    const Matrix<T> a = all.matrix(0, b), lower = all.matrix(1, b);
    const int64_t n = a.rows;
    auto* info = all.template row<int32_t>(2, b, 1);
    std::fill(lower.data, lower.data + n * n, T(0));
    *info = 0;
    for (int64_t j = 0; j < n; ++j) {
      for (int64_t i = j; i < n; ++i) {
        T rest = a(i, j);
        for (int64_t k = 0; k < j; ++k) rest -= Times(lower(i, k), Conj(lower(j, k)));
        if (i == j) {
          if (!(Re(rest) > 0) && *info == 0) *info = static_cast<int32_t>(j + 1);
          lower(i, j) = std::sqrt(Re(rest));
        } else {
          lower(i, j) = rest / Re(lower(j, j));
        }
      }
    }
  }
  return 0;
}

// Subtracts from the columns of x that begin with `first` the multiples of the k-th vector below
// the diagonal that reflect them.
template <class T>
void Reflect(Matrix<T> vectors, Matrix<T> x, T tau, int64_t k, int64_t first) {
  for (int64_t j = first; j < x.columns; ++j) {
    T total = x(k, j);
    for (int64_t i = k + 1; i < x.rows; ++i) total += Times(Conj(vectors(i, k)), x(i, j));
    total = Times(total, tau);
    x(k, j) -= total;
    for (int64_t i = k + 1; i < x.rows; ++i) x(i, j) -= Times(vectors(i, k), total);
  }
}

// a, r, tau: the factor R above the diagonal, below it the vectors of the reflections that make it.
template <class T>
int Reflections(const TVMFFIAny* args) {
  Batches<T> all(args);
  for (int64_t b = 0; b < all.count(0); ++b) {
    const Matrix<T> r = all.matrix(1, b);
    const int64_t m = r.rows, n = r.columns, least = std::min(m, n);
    T* tau = all.template row<T>(2, b, least);
    Copy(all.matrix(0, b), r);
    for (int64_t k = 0; k < least; ++k) {
      Real<T> below = 0;
      for (int64_t i = k + 1; i < m; ++i) below += Square(r(i, k));
      const T head = r(k, k);
      tau[k] = T(0);
      if (below == 0 && std::imag(head) == 0) continue;
      const Real<T> norm = std::sqrt(below + Square(head)), beta = Re(head) < 0 ? norm : -norm;
      tau[k] = (beta - head) / beta;
      const T scale = T(1) / (head - beta);
      for (int64_t i = k + 1; i < m; ++i) r(i, k) = Times(r(i, k), scale);
      r(k, k) = beta;
      Reflect(r, r, Conj(tau[k]), k, k + 1);
    }
  }
  return 0;
}

// a, tau, q: the product of the reflections whose vectors stand below the diagonal of a.
template <class T>
int Orthogonal(const TVMFFIAny* args) {
  Batches<T> all(args);
  const int64_t reflections = all.columns(1);
  for (int64_t b = 0; b < all.count(0); ++b) {
    const Matrix<T> a = all.matrix(0, b), q = all.matrix(2, b);
    const T* tau = all.template row<T>(1, b, reflections);
    for (int64_t i = 0; i < q.rows; ++i) {
      for (int64_t j = 0; j < q.columns; ++j) q(i, j) = T(i == j);
    }
    for (int64_t k = reflections - 1; k >= 0; --k) Reflect(a, q, tau[k], k, 0);
  }
  return 0;
}

// ---- vectors ------------------------------------------------------------------------------------
// Columns are rows here: they are read one after the other.
template <class W>
using Vectors = std::vector<std::vector<W>>;

template <class W>
W Product(const std::vector<W>& a, const std::vector<W>& b) {
  W sum(0);
  for (size_t i = 0; i < a.size(); ++i) sum += Times(Conj(a[i]), b[i]);
  return sum;
}

template <class W>
void Rotate(std::vector<W>& p, std::vector<W>& q, W turned, double c, double s) {
  for (size_t i = 0; i < p.size(); ++i) {
    const W x = p[i], y = Times(turned, q[i]);
    p[i] = c * x - s * y;
    q[i] = s * x + c * y;
  }
}

// What the direction of vectors is measured with, as dycl_tvm/hcfg/vectors.py has it.
inline double Weight(int64_t place, int64_t number) {
  double turns = 0.6180339887498949 * static_cast<double>((place + 1) * (number + 1));
  return 0.5 + (turns - std::floor(turns));
}

template <class W>
W Direction(const std::vector<W>& x) {
  W sum(0);
  for (size_t i = 0; i < x.size(); ++i) sum += Weight(static_cast<int64_t>(i), 0) * x[i];
  const double size = std::abs(sum);
  return size > 0 ? Conj(sum) / size : W(1);
}

// Makes x orthogonal to the first vectors and of length 1; false if nothing is left of it.
template <class W>
bool Complete(const Vectors<W>& before, size_t count, std::vector<W>& x) {
  for (int again = 0; again < 3; ++again) {
    for (size_t k = 0; k < count; ++k) {
      const W part = Product(before[k], x);
      for (size_t i = 0; i < x.size(); ++i) x[i] -= Times(part, before[k][i]);
    }
    const double size = std::sqrt(Re(Product(x, x)));
    if (!(size > 1e-8)) return false;
    for (W& e : x) e /= size;
  }
  return true;
}

// Turns the columns u of a matrix until they are orthogonal (one-sided Jacobi rotations), and the
// vectors v by as much: u is then the product of the matrix and v.
template <class W>
void Orthogonalise(Vectors<W>& u, Vectors<W>& v) {
  constexpr int kRounds = 60;
  bool moved = true;
  for (int round = 0; moved && round < kRounds; ++round) {
    moved = false;
    for (size_t p = 0; p < u.size(); ++p) {
      for (size_t q = p + 1; q < u.size(); ++q) {
        const double a = Re(Product(u[p], u[p])), b = Re(Product(u[q], u[q]));
        const W together = Product(u[p], u[q]);
        const double size = std::abs(together);
        if (!(size > 2e-16 * std::sqrt(a) * std::sqrt(b)) || size < 1e-300) continue;
        moved = true;
        const double ratio = (b - a) / (2 * size);
        const double t = (ratio < 0 ? -1.0 : 1.0) / (std::abs(ratio) + std::hypot(ratio, 1.0));
        const double c = 1 / std::sqrt(t * t + 1), s = c * t;
        const W turned = Conj(together) / size;
        Rotate(u[p], u[q], turned, c, s);
        Rotate(v[p], v[q], turned, c, s);
      }
    }
  }
}

// The largest element, by which others are divided so that no square leaves the numbers.
template <class T>
double Scale(Matrix<T> a) {
  double largest = 0;
  for (int64_t i = 0; i < a.rows * a.columns; ++i)
    largest = std::max<double>(largest, Size(a.data[i]));
  return largest > 0 && std::isfinite(largest) ? largest : 1.0;
}

template <class W>
Vectors<W> Unit(int64_t n) {
  Vectors<W> v(n, std::vector<W>(n, W(0)));
  for (int64_t i = 0; i < n; ++i) v[i][i] = W(1);
  return v;
}

template <class F>
int WithMemory(F run) {
  try {
    run();
  } catch (const std::bad_alloc&) {
    NoMemory("no memory for a factorisation");
    return -1;
  }
  return 0;
}

// a of at least as many rows as columns, u, sizes, v: a = u diag(sizes) v^H, the largest first. u
// may have more columns, which complete it.
template <class T>
int Svd(const TVMFFIAny* args) {
  using W = typename Of<T>::Wide;
  return WithMemory([&] {
    Batches<T> all(args);
    for (int64_t b = 0; b < all.count(0); ++b) {
      const Matrix<T> a = all.matrix(0, b), u = all.matrix(1, b), v = all.matrix(3, b);
      const int64_t m = a.rows, n = a.columns;
      auto* sizes = all.template row<Real<T>>(2, b, n);
      const double scale = Scale(a);
      Vectors<W> left(n, std::vector<W>(m)), right = Unit<W>(n);
      for (int64_t i = 0; i < m; ++i) {
        for (int64_t j = 0; j < n; ++j) left[j][i] = W(a(i, j)) / scale;
      }
      Orthogonalise(left, right);
      std::vector<double> length(n);
      for (int64_t j = 0; j < n; ++j) length[j] = std::sqrt(Re(Product(left[j], left[j])));
      std::vector<int64_t> order(n);
      std::iota(order.begin(), order.end(), 0);
      std::stable_sort(order.begin(), order.end(),
                       [&](int64_t p, int64_t q) { return length[p] > length[q]; });
      Vectors<W> made;
      for (int64_t k = 0; k < u.columns; ++k) {
        std::vector<W> x(m, W(0));
        if (k < n) {
          const int64_t j = order[k];
          const W turned = Direction(right[j]);
          sizes[k] = static_cast<Real<T>>(length[j] * scale);
          for (int64_t i = 0; i < n; ++i) v(i, k) = T(Times(turned, right[j][i]));
          if (length[j] > 0) {
            for (int64_t i = 0; i < m; ++i) x[i] = Times(turned, left[j][i]) / length[j];
          }
        }
        if (k >= n || length[order[k]] == 0) {
          for (int64_t tried = k - std::min(k, n);; ++tried) {
            for (int64_t i = 0; i < m; ++i) x[i] = W(Weight(i, tried));
            if (Complete(made, made.size(), x) || tried > 4 * m) break;
          }
        }
        for (int64_t i = 0; i < m; ++i) u(i, k) = T(x[i]);
        made.push_back(std::move(x));
      }
    }
  });
}

template <class T>
int SvdComplete(const TVMFFIAny* args) {
  return Svd<T>(args);
}

// a, sizes, v: a = v diag(sizes) v^H, the smallest first, of what stands in the lower triangle.
template <class T>
int Eigh(const TVMFFIAny* args) {
  using W = typename Of<T>::Wide;
  return WithMemory([&] {
    Batches<T> all(args);
    for (int64_t b = 0; b < all.count(0); ++b) {
      const Matrix<T> a = all.matrix(0, b), v = all.matrix(2, b);
      const int64_t n = a.rows;
      auto* sizes = all.template row<Real<T>>(1, b, n);
      const double scale = Scale(a);
      Vectors<W> left(n, std::vector<W>(n)), right = Unit<W>(n);
      std::vector<double> sums(n, 0.0);
      for (int64_t i = 0; i < n; ++i) {
        for (int64_t j = 0; j <= i; ++j) {
          const W x = i == j ? W(Re(a(i, j))) / scale : W(a(i, j)) / scale;
          left[j][i] = x;
          left[i][j] = Conj(x);
          sums[i] += std::abs(x);
          if (i != j) sums[j] += std::abs(x);
        }
      }
      // Moved by the largest sum of a row all eigenvalues are positive, and the vectors the same.
      const double shift = n ? *std::max_element(sums.begin(), sums.end()) : 0.0;
      for (int64_t i = 0; i < n; ++i) left[i][i] += shift;
      Orthogonalise(left, right);
      std::vector<double> length(n);
      for (int64_t j = 0; j < n; ++j) length[j] = std::sqrt(Re(Product(left[j], left[j]))) - shift;
      std::vector<int64_t> order(n);
      std::iota(order.begin(), order.end(), 0);
      std::stable_sort(order.begin(), order.end(),
                       [&](int64_t p, int64_t q) { return length[p] < length[q]; });
      for (int64_t k = 0; k < n; ++k) {
        const int64_t j = order[k];
        const W turned = Direction(right[j]);
        sizes[k] = static_cast<Real<T>>(length[j] * scale);
        for (int64_t i = 0; i < n; ++i) v(i, k) = T(Times(turned, right[j][i]));
      }
    }
  });
}

}  // namespace dycl::matrices

#endif  // DYCL_RUNTIME_MATRICES_H_

// Run the conformance vectors: g++ -std=c++17 -O2 run.cpp -o run && ./run NAME.safetensors ...
// Put your engine in place of the first two functions. Exits with 1 if a case fails. Angles are double; cos, sin and
// products are rounded to float. The cases are lines of `key=value` words in the file's metadata: no JSON parser needed.
#include <cmath>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <iostream>
#include <iterator>
#include <map>
#include <sstream>
#include <string>
#include <vector>

using List = std::vector<double>;
using Words = std::map<std::string, std::string>;

// Rotate one head in place; ids has one position, or one for each pair.
void rotate(float* x, const List& ids, const List& inv_freq, bool interleaved, float factor) {
  const size_t pairs = inv_freq.size();
  for (size_t i = 0; i < pairs; i++) {
    const double angle = (ids.size() > 1 ? ids[i] : ids[0]) * inv_freq[i];
    const float c = std::cos(angle), s = std::sin(angle);
    float &first = x[interleaved ? 2 * i : i], &second = x[interleaved ? 2 * i + 1 : i + pairs];
    const float a = first, b = second;
    first = (a * c - b * s) * factor;
    second = (b * c + a * s) * factor;
  }
}

List numbers(const std::string& text) {  // "2,2"
  std::istringstream words(text);
  List found;
  for (std::string word; std::getline(words, word, ',');) found.push_back(std::stod(word));
  return found;
}

// The position of each token (or three of them), from what a server knows about the batch.
List positions(const std::string& kind, Words& p, std::map<std::string, List>& in, int tokens) {
  List ids;
  if (kind == "chunks") {
    for (double n : numbers(p["chunks"]))
      for (int i = 0; i < n; i++) ids.push_back(ids.size());  // the second chunk continues after the first
  } else if (kind == "packed") {
    for (size_t d = 0; d + 1 < in["cu_seqlens"].size(); d++)
      for (int i = 0; i < in["cu_seqlens"][d + 1] - in["cu_seqlens"][d]; i++) ids.push_back(i);
  } else if (kind == "context_parallel") {
    const int ranks = std::stoi(p["ranks"]), part = tokens / (2 * ranks);
    for (int rank = 0; rank < ranks; rank++)
      for (int of : {rank, 2 * ranks - 1 - rank})
        for (int i = 0; i < part; i++) ids.push_back(of * part + i);
  } else if (kind == "left_padded") {
    const List& mask = in["attention_mask"];
    for (size_t i = 0, seen = 0; i < mask.size(); i++) {
      seen = (i % tokens ? seen : 0) + mask[i];
      ids.push_back(seen ? seen - 1 : 0);
    }
  } else if (kind == "axes") {
    ids = in["position_ids"];
  } else {
    for (int i = 0; i < tokens; i++) ids.push_back(i + (p.count("cache_length") ? std::stod(p["cache_length"]) : 0));
  }
  return ids;
}

// A safetensors file: 8 bytes with the length of a JSON header, the header, the data.
struct File {
  std::string bytes, header;
  explicit File(const char* path) {
    std::ifstream stream(path, std::ios::binary);
    bytes.assign(std::istreambuf_iterator<char>(stream), {});
    uint64_t length = 0;
    std::memcpy(&length, bytes.data(), 8);
    header = bytes.substr(8, length);
  }
  std::string between(const std::string& text, const std::string& from, const std::string& to) const {
    const size_t start = text.find(from) + from.size();
    return text.substr(start, text.find(to, start) - start);
  }
  List tensor(const std::string& name, List* shape = nullptr) const {
    const std::string entry = between(header, "\"" + name + "\":{", "}");
    const List offsets = numbers(between(entry, "\"data_offsets\":[", "]"));
    if (shape) *shape = numbers(between(entry, "\"shape\":[", "]"));
    const char* at = bytes.data() + 8 + header.size() + size_t(offsets[0]);
    const char* end = bytes.data() + 8 + header.size() + size_t(offsets[1]);
    const std::string type = between(entry, "\"dtype\":\"", "\"");
    List values;
    for (; at < end; at += type == "F64" ? 8 : 4) {
      double d; float f; int32_t i;
      if (type == "F64") std::memcpy(&d, at, 8), values.push_back(d);
      else if (type == "F32") std::memcpy(&f, at, 4), values.push_back(f);
      else std::memcpy(&i, at, 4), values.push_back(i);
    }
    return values;
  }
  std::vector<Words> cases() const {
    std::vector<Words> found;
    std::string text = between(header, "\"cases\":\"", "\"");
    for (size_t end; (end = text.find("\\n")) != std::string::npos;) text.replace(end, 2, "\n");
    std::istringstream lines(text);
    for (std::string line, word; std::getline(lines, line);) {
      std::istringstream words(line);
      found.emplace_back();
      while (words >> word) found.back()[word.substr(0, word.find('='))] = word.substr(word.find('=') + 1);
    }
    return found;
  }
};

int main(int count, char** paths) {
  int failed = 0;
  for (int file_number = 1; file_number < count; file_number++) {
    const File file(paths[file_number]);
    for (Words one : file.cases()) {
      const std::string kind = one["kind"];
      const List inv_freq = file.tensor(one["inv_freq"]);
      std::map<std::string, List> in, out, shapes;
      for (const auto& [key, value] : one)
        if (key.rfind("in.", 0) == 0) in[key.substr(3)] = file.tensor(value, &shapes[key.substr(3)]);
      if (kind == "inv_freq") {
        if (one["rope_type"] == "default")
          for (size_t i = 0; i < inv_freq.size(); i++)
            out["inv_freq"].push_back(std::pow(std::stod(one["theta"]), -2.0 * i / std::stod(one["rotary_dim"])));
      } else if (kind == "cos_sin") {
        for (double position : in["position_ids"])
          for (double frequency : inv_freq) {
            out["cos"].push_back(float(std::cos(position * frequency)));
            out["sin"].push_back(float(std::sin(position * frequency)));
          }
      } else {
        const size_t heads_at = shapes["k"].size() - 2, tokens = shapes["k"][heads_at - 1];
        const List ids = out["position_ids"] = positions(kind, one, in, tokens);
        for (const char* key : {"q", "k"}) {
          if (!in.count(key)) continue;
          std::vector<float> x(in[key].begin(), in[key].end());
          const size_t heads = shapes[key][heads_at], width = shapes[key][heads_at + 1];
          for (size_t head = 0; head < x.size() / width; head++) {
            List own{kind == "context_parallel" ? double(head / heads) : ids[head / heads]};
            if (in.count("axis_of_pair")) {
              own.clear();
              for (double axis : in["axis_of_pair"]) own.push_back(ids[ids.size() / tokens * (head / heads) + size_t(axis)]);
            }
            rotate(&x[head * width], own, inv_freq, one["pairing"] == "interleaved", std::stof(one["attention_factor"]));
          }
          out[key].assign(x.begin(), x.end());
        }
      }
      const bool runs = !out.empty();
      bool pass = true;
      for (const auto& [key, value] : one) {
        if (key.rfind("out.", 0) != 0) continue;
        const List truth = file.tensor(value), mine = out[key.substr(4)], mask = in["attention_mask"];
        const double limit = key == "out.position_ids" ? 0 : std::stod(one["tolerance"]);
        pass = pass && mine.size() == truth.size();
        for (size_t i = 0; pass && i < truth.size(); i++)
          if (mask.empty() || mask[i * mask.size() / truth.size()])  // padding is not compared
            pass = std::abs(mine[i] - truth[i]) <= limit * (one["measure"] == "relative" ? std::abs(truth[i]) : 1);
      }
      failed += runs && !pass;
      std::cout << (!runs ? "not run" : pass ? "pass" : "FAIL") << "  " << paths[file_number] << "  " << one["name"] << "\n";
    }
  }
  return failed > 0;
}

// The words that announce themselves: EMPTY is one word, is never sent, and wherever it stands in a pack, the pack has
// not arrived. Abort words say who and since when, across the wrap of the epoch.
#include "expect.h"
#include "protocol/channel.h"

namespace pcie_allreduce::test {
namespace {

void empty_is_one_word() {
  static constexpr Word kOthers[] = {0,           1,           0x7FFF'FFFF, 0x8000'0001,
                                     0x8000'8000, 0x0000'8000, 0xFFFF'FFFF, 0x4000'0000};
  expect(encoded(kEmpty) == 0, "EMPTY must be sent as 0, not as %08x", encoded(kEmpty));
  for (const Word word : kOthers)
    expect(encoded(word) == word, "%08x must be sent unchanged, not as %08x", word, encoded(word));
}

void every_word_is_tested() {
  for (Word missing = 0; missing < 16; ++missing) {
    Pack pack{{1, 2, 3, 4}};
    for (Word w = 0; w < 4; ++w) {
      if (missing >> w & 1u) pack.word[w] = kEmpty;
    }
    expect(arrived(pack) == (missing == 0), "a pack with words %x missing must count as arrived only if none is",
           missing);
    expect(arrived(encoded(pack)), "an encoded pack must always count as arrived");
  }
  expect(!arrived(empty_pack()), "an armed slot must not count as arrived");
}

void abort_words_tell() {
  static constexpr Reason kReasons[] = {Reason::kTimeout, Reason::kMismatch, Reason::kClosed, Reason::kGone,
                                        Reason::kInterrupted};
  for (const Reason reason : kReasons) {
    for (Word culprit = 0; culprit < kMaxWorld; ++culprit) {
      const Word word = abort_word(reason, culprit, 0xFFFF'FFFF);
      expect(abort_reason(word) == reason && abort_culprit(word) == culprit, "abort word %08x must name rank %u", word,
             culprit);
      expect(word != 0 && aborts(word, 0xFFFF'FFFF), "abort word %08x must abort its own call", word);
    }
  }
}

void aborts_from_its_call_on() {
  static constexpr Word kCalls[] = {0,           1,           5,           0x00FF'FFFF, 0x0100'0000,
                                    0x7FFF'FFFF, 0x8000'0000, 0xFFFF'FFFE, 0xFFFF'FFFF};
  for (const Word call : kCalls) {
    const Word word = abort_word(Reason::kClosed, 3, call);
    for (Word later = 0; later < 3; ++later) {
      expect(aborts(word, call + later), "an abort in call %u must end call %u", call, call + later);
      expect(!aborts(word, call - 1 - later), "an abort in call %u must not end call %u", call, call - 1 - later);
      // Whoever was missed in vain a call ahead sends nothing in the calls before either.
      const Word missed = abort_word(Reason::kTimeout, 3, call);
      expect(aborts(missed, call + later) && aborts(missed, call - 1 - later), "a timeout in call %u must end all",
             call);
    }
  }
  expect(!aborts(0, 7), "no abort word, no abort");
}

void signatures_differ() {
  const Pack mine = Signature{kEmpty, 43008, signature_kind(Algorithm::kOneShot, Dtype::kBFloat16), 1}.pack();
  const Pack dtype = Signature{kEmpty, 43008, signature_kind(Algorithm::kOneShot, Dtype::kFloat16), 1}.pack();
  const Pack algorithm = Signature{kEmpty, 43008, signature_kind(Algorithm::kTwoShot, Dtype::kBFloat16), 1}.pack();
  const Pack call = Signature{kEmpty + 1, 43008, signature_kind(Algorithm::kOneShot, Dtype::kBFloat16), 1}.pack();
  expect(arrived(mine), "the signature of call %u must be one that can arrive", kEmpty);
  expect(same(mine, mine) && !same(mine, dtype) && !same(mine, algorithm) && !same(mine, call),
         "signatures must tell calls apart");
  const Word kind = signature_kind(Algorithm::kIsland, Dtype::kFloat16);
  expect(kind_algorithm(kind) == Algorithm::kIsland && kind_dtype(kind) == Dtype::kFloat16,
         "kind %08x must be read back", kind);
}

}  // namespace
}  // namespace pcie_allreduce::test

int main() {
  using namespace pcie_allreduce::test;
  empty_is_one_word();
  every_word_is_tested();
  abort_words_tell();
  aborts_from_its_call_on();
  signatures_differ();
  return result();
}

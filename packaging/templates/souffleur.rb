class Souffleur < Formula
  desc "LLM inference engine made of actors"
  homepage "@REPOSITORY@"
  version "@VERSION@"
  license any_of: ["MIT", "Apache-2.0"]

  on_linux do
    on_intel do
      url "@REPOSITORY@/releases/download/v@VERSION@/souffleur-@VERSION@-x86_64-unknown-linux-gnu.tar.gz"
      sha256 "@SHA256 x86_64-unknown-linux-gnu@"
    end
    on_arm do
      url "@REPOSITORY@/releases/download/v@VERSION@/souffleur-@VERSION@-aarch64-unknown-linux-gnu.tar.gz"
      sha256 "@SHA256 aarch64-unknown-linux-gnu@"
    end
  end

  on_macos do
    on_arm do
      url "@REPOSITORY@/releases/download/v@VERSION@/souffleur-@VERSION@-aarch64-apple-darwin.tar.gz"
      sha256 "@SHA256 aarch64-apple-darwin@"
    end
  end

  def install
    bin.install "souffleur"
    man1.install Dir["man/*.1"]
    bash_completion.install "completions/souffleur"
    zsh_completion.install "completions/_souffleur"
    fish_completion.install "completions/souffleur.fish"
  end

  test do
    assert_match version.to_s, shell_output("#{bin}/souffleur --version")
  end
end

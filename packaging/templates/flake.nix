{
  description = "@SUMMARY@";
  inputs.nixpkgs.url = "github:NixOS/nixpkgs/nixos-unstable";
  outputs = { self, nixpkgs }:
    let
      archives = {
        x86_64-linux = { machine = "x86_64"; sha256 = "@SHA256_X86_64@"; };
        aarch64-linux = { machine = "aarch64"; sha256 = "@SHA256_AARCH64@"; };
      };
      package = system: { machine, sha256 }:
        let pkgs = nixpkgs.legacyPackages.${system};
        in pkgs.stdenv.mkDerivation {
          pname = "souffleur";
          version = "@VERSION@";
          src = pkgs.fetchurl {
            url = "@REPOSITORY@/releases/download/v@VERSION@/souffleur-@VERSION@-${machine}-unknown-linux-gnu.tar.gz";
            inherit sha256;
          };
          nativeBuildInputs = [ pkgs.autoPatchelfHook ];
          buildInputs = [ pkgs.stdenv.cc.cc.lib ];
          installPhase = ''
            install -Dm755 souffleur $out/bin/souffleur
            install -Dm644 -t $out/share/man/man1 man/*.1
            install -Dm644 completions/souffleur $out/share/bash-completion/completions/souffleur
            install -Dm644 completions/_souffleur $out/share/zsh/site-functions/_souffleur
            install -Dm644 completions/souffleur.fish $out/share/fish/vendor_completions.d/souffleur.fish
          '';
        };
    in {
      packages = builtins.mapAttrs (system: archive: { default = package system archive; }) archives;
    };
}

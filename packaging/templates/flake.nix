{
  description = "@SUMMARY@";
  inputs.nixpkgs.url = "github:NixOS/nixpkgs/nixos-unstable";
  outputs = { self, nixpkgs }:
    let
      archives = {
        x86_64-linux = {
          triple = "x86_64-unknown-linux-gnu";
          sha256 = "@SHA256 x86_64-unknown-linux-gnu@";
        };
        aarch64-linux = {
          triple = "aarch64-unknown-linux-gnu";
          sha256 = "@SHA256 aarch64-unknown-linux-gnu@";
        };
        aarch64-darwin = {
          triple = "aarch64-apple-darwin";
          sha256 = "@SHA256 aarch64-apple-darwin@";
        };
      };
      package = system: { triple, sha256 }:
        let pkgs = nixpkgs.legacyPackages.${system};
        in pkgs.stdenv.mkDerivation {
          pname = "souffleur";
          version = "@VERSION@";
          src = pkgs.fetchurl {
            url = "@REPOSITORY@/releases/download/v@VERSION@/souffleur-@VERSION@-${triple}.tar.gz";
            inherit sha256;
          };
          nativeBuildInputs = pkgs.lib.optionals pkgs.stdenv.isLinux [ pkgs.autoPatchelfHook ];
          buildInputs = pkgs.lib.optionals pkgs.stdenv.isLinux [ pkgs.stdenv.cc.cc.lib ];
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

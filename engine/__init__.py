"""The decode engine: one process per loaded model, driving libllama through ctypes."""

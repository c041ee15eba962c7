"""The application that gunicorn's workers serve: `gunicorn -c configs/gunicorn.py api.app:app`."""

from api.routes import create_app
from ipc.config import ambient

app = create_app(ambient())
